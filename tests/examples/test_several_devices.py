"""Examples of several processes or devices."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.scripts import ROOT, run


@pytest.mark.slow
def test_processes_train_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM_DEVICES", "2")
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    printed = run("processes.py")
    assert "2 processes, CPU" in printed
    difference = re.search(r"first 20 steps ([\d.e+-]+)", printed)
    assert difference is not None and float(difference[1]) < 1e-4


@pytest.mark.slow
def test_a_run_that_loses_a_process_ends_where_one_does_that_was_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    losses = []
    for name, lost in (("whole", []), ("restarted", ["--lose", "12"])):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        # One restart: a second would hide that the first attempt after the loss had failed too.
        command += ["--max-restarts", "1", str(ROOT / "examples" / "restarts.py"), "--fast"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, "--checkpoint", str(tmp_path / name), *lost],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert ("goes on at step 10" in done.stdout) == bool(lost)
        assert ("Process 1 of 2 is gone" in done.stderr) == bool(lost)
        losses += re.findall(r"final loss ([\d.e-]+)", done.stdout)
    assert len(losses) == 2 and losses[0] == losses[1]


@pytest.mark.slow
def test_a_decoder_has_equal_losses_in_every_layout_and_less_memory_when_it_is_divided() -> None:
    printed = run("mesh.py")
    losses = re.findall(r"losses ([\d.]+) → ([\d.]+)", printed)
    assert len(losses) == 3
    data, fsdp, both = (float(size) for size in re.findall(r"([\d.]+) MB on a device", printed))
    assert fsdp < 0.3 * data and both < 0.3 * data


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs pip install 'ray[train]'")
def test_two_workers_of_ray_train_learn_what_one_process_does(tmp_path: Path) -> None:
    printed = run("ray_train.py", "--lose", "12", "--storage", str(tmp_path))
    assert "2 workers of Ray, one lost in step 12: loss" in printed
