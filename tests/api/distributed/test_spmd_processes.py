"""Two processes of two devices each train what one process with four trains."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]


def run(folder: Path, launcher: list[str], devices: int) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PJRT_", "XLA_", "CPU_"))}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, *launcher, "-m", "tests.support.spmd_processes", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
def test_two_processes_train_what_one_does(tmp_path: Path) -> None:
    run(tmp_path, [], 4)
    run(tmp_path, ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"], 2)
    (one, sums), (two, others) = torch.load(tmp_path / "1.pt"), torch.load(tmp_path / "2.pt")
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(others, sums, rtol=1e-3, atol=1e-3)
