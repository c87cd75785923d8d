"""What the numbers are measured on, and how quiet it was meanwhile."""

import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

THREADS = 2


@dataclass
class Disturbance:
    """The share of the machine's cores that other processes used meanwhile."""

    share: float = 0.0


def _busy_seconds() -> tuple[float, float]:
    """CPU seconds so far: of the whole machine, and of this process."""
    ticks = [int(column) for column in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = ticks[3:5]
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK"), time.process_time()


@contextmanager
def watched() -> Iterator[Disturbance]:
    """Tells afterwards how much other processes disturbed what ran inside."""
    disturbance = Disturbance()
    started, (all_before, own_before) = time.perf_counter(), _busy_seconds()
    yield disturbance
    seconds, (all_after, own_after) = time.perf_counter() - started, _busy_seconds()
    others = (all_after - all_before) - (own_after - own_before)
    disturbance.share = max(0.0, others / seconds / (os.cpu_count() or 1))


def processor() -> str:
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.processor()


def description() -> str:
    return (
        f"{processor()}, {os.cpu_count()} cores, PyTorch with {THREADS} threads; "
        f"Python {platform.python_version()}, torch {version('torch')}, jax {version('jax')}"
    )
