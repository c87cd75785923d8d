"""The examples, run as a user runs them, with small settings."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import compiler

ROOT = Path(__file__).parents[1]


def run(example: str, *options: str) -> str:
    """What the example prints; fails with what it complains of if it misses one of its own bounds."""
    command = [sys.executable, str(ROOT / "examples" / example), "--fast", *options]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_digits_are_learnt_as_on_the_cpu_and_a_picture_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "digits.png"
    printed = run("digits.py", "--out", str(picture))
    accuracies = [float(number) for number in re.findall(r"([\d.]+)%", printed)]
    assert len(accuracies) == 2 and min(accuracies) > 90
    assert "CPU fallbacks 0" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_transformer_learns_text_with_three_compiles_of_its_step() -> None:
    printed = run("chargpt.py")
    before, after = map(float, re.findall(r"([\d.]+) (?:before|after)", printed))
    assert after < 0.8 * before
    compiles = re.search(r"compiles of the training step (\d+)", printed)
    assert compiles is not None and 1 <= int(compiles[1]) <= 3
    assert "CPU fallbacks 0" in printed
    written = printed.split("writes after it ---\n")[1].split("\n---\n")[0]
    assert len(written) == len("\n\nThe value of the expression") + 20


@pytest.mark.slow
def test_the_comparison_in_the_attention_is_found_with_its_line_and_count_and_gone_when_repaired() -> None:
    printed = run("early_evaluation.py")
    before, after = printed.split("--- attention compares with `is`")
    counts = [int(count) for count in re.findall(r"FRAME \(count=(\d+)\):\n.*Unlowered Op: \"equal\"", before)]
    assert sorted(counts) == [6, 12, 12, 12]  # six steps: each encoder and the decoder twice, the decoder's other once
    assert len(re.findall(r"Frames:\n.*  forward \(.*early_evaluation\.py:\d+\)\n", before)) == 4
    assert '"equal"' not in after


@pytest.mark.slow
def test_text_is_written_by_token_replayed_and_as_one_program() -> None:
    printed = run("decoding.py")
    assert "all ways wrote the same: True" in printed
    assert re.findall(r"for this text (\d+)", printed) == ["0", "0", "0"]
    assert "drawn letters differ from the most likely: True" in printed
    assert "CPU fallbacks 0" in printed


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
        command += ["--max-restarts", "2", str(ROOT / "examples" / "restarts.py"), "--fast"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, "--checkpoint", str(tmp_path / name), *lost],
            env=environment, capture_output=True, text=True, timeout=300,
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
def test_processes_train_the_text_model_as_one_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPU_NUM_DEVICES", "2")
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("XLA_FLAGS", compiler.QUICK)
    picture, folder = tmp_path / "losses.png", str(tmp_path / "checkpoint")
    options = ["--batch-size", "12", "--way", "fsdp", "fsdp2"]
    printed = run("chargpt_processes.py", *options, "ddp", "--save", folder, "--out", str(picture))
    for way in ("ddp", "fsdp", "fsdp2"):
        assert f"{way}, 2 processes: loss" in printed
    assert printed.count(" in steps 0 to 19\n") == 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    script = str(ROOT / "examples" / "chargpt_processes.py")
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", script]
    command = [*agent, "--fast", *options, "--resume", folder, "--steps", "5"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for way in ("fsdp", "fsdp2"):
        assert f"{way}, 3 processes: loss" in done.stdout
    assert done.stdout.count(" in steps 20 to 24\n") == 2


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs pip install 'ray[train]'")
def test_two_workers_of_ray_train_learn_what_one_process_does(tmp_path: Path) -> None:
    assert "2 workers of Ray: loss" in run("ray_train.py", "--storage", str(tmp_path))
