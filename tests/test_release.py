"""The wheel and the source distribution can be built, and the wheel works where the repository is not."""

import subprocess
import sys

import pytest

from tests.house.source import ROOT


@pytest.mark.slow
def test_the_wheel_runs_where_it_is_installed() -> None:
    command = [sys.executable, str(ROOT / "tools" / "release.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the README's program ends with a loss of" in done.stdout
