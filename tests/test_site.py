"""The documents build as a site without a warning, and the reference has every public module."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=700)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "api.html").read_text()
    for name in ("torch_xla.sync", "torch_xla.core.xla_model.mark_step", "torch_xla.runtime.device_type"):
        assert f'id="{name}"' in reference
