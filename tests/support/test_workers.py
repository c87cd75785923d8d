import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CONFTEST = """
from tests.support import workers

def pytest_xdist_make_scheduler(config, log):
    return workers.Shared(config, log)
"""

HANGS = """
import ctypes, subprocess, sys, threading

def test_before():
    pass

def test_waits_for_ever_beside_a_program():
    subprocess.Popen([sys.executable, "-c", "import signal; signal.alarm(200); signal.pause()"])
    threading.Event().wait()

def test_between():
    pass

def test_holds_the_interpreter_for_ever():
    ctypes.PyDLL(None).pause()

def test_after():
    pass
"""


@pytest.mark.slow
def test_a_test_that_hangs_fails_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_hangs.py").write_text(HANGS)
    (tmp_path / "test_others.py").write_text("def test_one():\n    pass\n\ndef test_two():\n    pass\n")
    limit = ["-o", "faulthandler_timeout=6", "-o", "faulthandler_exit_on_timeout=true"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *limit, str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert "2 failed, 5 passed" in done.stdout, done.stdout + done.stderr
    for name in ("test_waits_for_ever_beside_a_program", "test_holds_the_interpreter_for_ever"):
        assert f"crashed while running 'test_hangs.py::{name}'" in done.stdout
        assert f" in {name}\n" in done.stderr
