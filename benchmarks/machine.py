"""The machine of the measurements, and the load of other processes."""

import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

# The number of cores for all contestants: otherwise PyTorch and XLA would start different numbers of threads.
CORES = 2


# A smaller share of the cores that other processes used is not mentioned.
NOTABLE = 0.02


@dataclass
class Disturbance:
    """The share of the machine's cores that other processes used meanwhile."""

    share: float = 0.0

    def told(self) -> str:
        """Return a sentence to put below a table, or an empty text if other processes used next to nothing."""
        return f"Other processes used {self.share:.0%} of the cores meanwhile." if self.share >= NOTABLE else ""


def _busy_seconds() -> tuple[float, float]:
    """CPU seconds so far: of the whole machine, and of this process with those it started and that ended."""
    ticks = [int(column) for column in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = ticks[3:5]
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4])


@contextmanager
def watched() -> Iterator[Disturbance]:
    """Tells afterwards how much other processes disturbed what ran inside."""
    disturbance = Disturbance()
    started, (all_before, own_before) = time.perf_counter(), _busy_seconds()
    yield disturbance
    seconds, (all_after, own_after) = time.perf_counter() - started, _busy_seconds()
    others = (all_after - all_before) - (own_after - own_before)
    disturbance.share = max(0.0, others / seconds / (os.cpu_count() or 1))


def of_pytorch() -> torch.device:
    """Where PyTorch runs beside the xla device: on the same GPU, if that is one and PyTorch is built for it."""
    on_gpu = os.environ.get("PJRT_DEVICE") != "CPU" and torch.cuda.is_available()
    return torch.device("cuda" if on_gpu else "cpu")


def confine() -> None:
    """Keeps this process and those it starts on `CORES` cores; must come before the first device is used.

    Beside a GPU it does not: there the GPU is what all contestants share.
    """
    if of_pytorch().type == "cuda":
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    torch.set_num_threads(CORES)


def processor() -> str:
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.processor()


def description() -> str:
    if of_pytorch().type == "cuda":
        shared = f"{torch.cuda.get_device_name()}, host {processor()} with {os.cpu_count()} cores"
    else:
        shared = f"{processor()}, {CORES} of {os.cpu_count()} cores for all contestants"
    return f"{shared}; Python {platform.python_version()}, torch {version('torch')}, jax {version('jax')}"
