"""A vendor's plugin becomes the device, and trains as the CPU does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("devices", ["one", "mesh"])
def test_a_training_step_runs_on_a_vendors_device(devices: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PJRT_DEVICE"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.vendor", devices],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0 and ran.stdout.endswith("trained\n"), ran.stderr[-3000:]
