"""Long compilations are reported on a terminal, and nowhere else."""

import io
import re
import sys
import threading
import time

import pytest
import torch

import torch_xla
from torch_xla._engine.step import compile_progress

HERE = (("train.py", 31, "step"),)
ANEW = "\r\x1b[2K"
WHAT = r"a program of 1,240 operations \(train\.py:31 in step\)"


class Terminal(io.StringIO):
    """A terminal whose output a test can read."""

    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """In the test and not in a fixture, after which pytest puts its own stream in the place."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(compile_progress, "PATIENCE", 0.05)
    monkeypatch.setattr(compile_progress, "EVERY", 0.05)
    return shown


def test_a_long_one_is_told_while_it_runs_and_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with compile_progress.report_progress(1240, HERE):
        end = time.monotonic() + 60
        while terminal.getvalue().count(ANEW) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        _, *shown = terminal.getvalue().split(ANEW)
        assert len(shown) >= 2
        for line in shown:
            assert re.fullmatch(rf"torch_xla compiles {WHAT}: \d+ s so far", line)
    assert re.search(rf"torch_xla compiled {WHAT} in \d+ s\n$", terminal.getvalue())
    length = len(terminal.getvalue())
    time.sleep(0.15)
    assert len(terminal.getvalue()) == length


def test_a_short_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setattr(compile_progress, "PATIENCE", 30.0)
    with compile_progress.report_progress(3, HERE):
        pass
    assert not terminal.getvalue()


def test_a_failing_one_ends_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with pytest.raises(RuntimeError, match="out of room"), compile_progress.report_progress(3, HERE):
        time.sleep(0.1)
        raise RuntimeError("out of room")
    assert terminal.getvalue().endswith("s\n")


def test_a_line_that_is_just_written_at_the_end_stands_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, begun = terminal_of(monkeypatch), threading.Event()
    write = terminal.write

    def slowly(text: str) -> int:
        if text.endswith("so far"):
            begun.set()
            time.sleep(0.1)
        return write(text)

    monkeypatch.setattr(terminal, "write", slowly)
    with compile_progress.report_progress(3, HERE):
        assert begun.wait(60)
    time.sleep(0.2)
    assert terminal.getvalue().endswith("s\n")


def test_nothing_is_written_to_a_file(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_progress, "PATIENCE", 0.0)
    with compile_progress.report_progress(3, HERE):
        time.sleep(0.05)
    assert capfd.readouterr().err == ""


def test_a_terminal_that_has_gone_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    terminal.close()
    with compile_progress.report_progress(3, HERE):
        time.sleep(0.1)


def test_a_program_is_told_with_the_line_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setattr(compile_progress, "PATIENCE", 0.0)
    x = torch.ones(47).to("xla").cos().tanh()
    torch_xla.sync()
    assert "operations (" in terminal.getvalue() and "test_compile_progress.py:" in terminal.getvalue()
    torch.testing.assert_close(x.cpu(), torch.ones(47).cos().tanh())
