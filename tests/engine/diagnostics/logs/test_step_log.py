"""A line for each step, and Python's stack where a crash ends the process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.diagnostics.logs import switches

ROOT = Path(__file__).parents[4]


def test_each_step_is_told_with_the_line_that_ended_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.ones(3).to("xla")
    with monkeypatch.context() as patch:
        patch.setenv("XLA_EMIT_STEPLOG", "1")
        switches.apply_settings()
        for _ in range(2):
            x = x + 1
            torch_xla.sync()
        torch_xla.sync()  # a step too, with nothing in it
    switches.apply_settings()
    x = x + 1
    torch_xla.sync()
    first, second, third = capsys.readouterr().err.splitlines()
    line = r"torch_xla\.sync: step (\d+) on xla:0, \d+\.\d{3} ms, ended by (.*):(\d+) in test_each_step.*"
    one, other = (re.fullmatch(line, text) for text in (first, second))
    assert one and other
    assert int(other[1]) == int(one[1]) + 1
    assert one[2] == __file__ and one[3] == other[3]
    assert re.fullmatch(line, third)
    assert met.counter_value("MarkStep") == 4


@pytest.mark.slow
def test_a_crash_shows_the_frames_of_the_program() -> None:
    program = "import os, torch_xla\n\ndef crash():\n    os.abort()\n\ncrash()\n"
    environment = {**os.environ, "XLA_DUMP_FATAL_STACK": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode < 0
    assert "Fatal Python error: Aborted" in done.stderr
    assert 'File "<string>", line 4 in crash' in done.stderr
