"""Several ordinals in one process: the program below runs once, on four virtual CPU devices, and reports its parts."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = ROOT / "tests" / "support" / "four_devices.py"


@cache
def reports() -> dict[str, str]:
    """What each part of the program reported: "ok", or its traceback."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PJRT_", "XLA_", "CPU_"))}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.support.four_devices"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    parts = dict(part.split("\n", 1) for part in done.stdout.split("### ")[1:])
    parts["the program ends well"] = "ok" if done.returncode == 0 else done.stderr
    return parts


def names() -> list[str]:
    lines = PARTS.read_text().splitlines()
    return [line[4:].partition("(")[0] for line in lines if line.startswith("def ") and not line.startswith("def _")]


@pytest.mark.parametrize("name", [*names(), "the program ends well"])
def test_four_devices(name: str) -> None:
    report = reports().get(name, f"not reached\n{reports()['the program ends well']}")
    assert report.strip() == "ok", report
