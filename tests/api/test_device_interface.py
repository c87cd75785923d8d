"""PyTorch's interface for devices, each function in a process of its own: it returns or raises, and never crashes.

Each is called before and after the first use of the device, and in the fork of a process that has used it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# PyTorch calls `record` of what it is given, on every device.
_PYTORCHS = "getattr(torch.Stream(device=\"xla\"), 'record_event')("

ROOT = Path(__file__).parents[2]


def outcomes(section: str) -> dict[str, list[str]]:
    command = [sys.executable, "-m", "tests.support.own_process", section]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])[section]
    return found


def crashed(found: dict[str, list[str]]) -> list[str]:
    return [f"{call}: {each}" for call, all_three in found.items() for each in all_three if each.startswith("signal")]


def test_the_caches_of_the_accelerator_can_be_emptied() -> None:
    found = outcomes("smallest")
    assert not crashed(found)
    for name in ("empty_cache()", "empty_host_cache()"):
        assert found[name][1] == "value None"
        assert found[name][2] == "value None" or "a fork cannot use it" in found[name][2]


@pytest.mark.slow
@pytest.mark.parametrize("section", ["accelerator", "device_module", "hooks", "parts", "methods"])
def test_no_function_of_the_interface_ends_the_process(section: str) -> None:
    found = outcomes(section)
    assert len(found) > 40
    assert not crashed(found)
    # Errors that our own errors should have prevented.
    pointless = [
        call for call, all_three in found.items() for each in all_three
        if ("INTERNAL ASSERT" in each or "object has no attribute" in each) and not call.startswith(_PYTORCHS)
    ]  # fmt: skip
    assert not pointless
