"""On the CPU, memory that a program has freed serves the next one without a visit to the kernel."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
import torch_xla


def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()


def step():
    y = x * 2 + 1
    torch_xla.sync(wait=True)


x = torch.ones(5000, 5000, device="xla")
for _ in range(3):
    step()
started = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - started
kept = resident()
del x
torch_xla.sync(wait=True)
torch.xla.empty_cache()
print(faults, kept - resident())
"""


def run(**variables: str) -> tuple[int, int]:
    """Page faults of five steps that make 100 MB each, and the bytes that `empty_cache()` returned afterwards."""
    command = [sys.executable, "-c", PROGRAM]
    mine = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        command, env={**mine, **variables}, check=True, stdout=subprocess.PIPE, text=True, timeout=100
    )
    faults, returned = done.stdout.split()
    return int(faults), int(returned)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Only glibc is set.")


def test_memory_is_kept_between_steps_and_returned_on_request() -> None:
    faults, returned = run(PJRT_DEVICE="CPU", XLA_KEEP_HOST_MEMORY="1")
    assert faults < 500
    assert returned > 80e6


@pytest.mark.parametrize(
    "variables", [{"XLA_KEEP_HOST_MEMORY": "0"}, {"MALLOC_TOP_PAD_": "131072"}], ids=["switched off", "set by the user"]
)
def test_the_allocator_is_left_alone(variables: dict[str, str]) -> None:
    faults, _ = run(PJRT_DEVICE="CPU", **variables)
    assert faults > 50_000  # each step touches 100 MB that were not there, in pages of 4 KiB
