"""The text model, trained by several processes in every way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import compiler
from tests.support.scripts import ROOT, run


@pytest.mark.exhaustive
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
