"""Measures what the host pays: for one operation, for an idle `mark_step`, and for a replayed step.

    python -m benchmarks.dispatch [--blocks 100] [--write docs/benchmarks.md]

Microseconds a call: the shortest of many blocks of 200 calls, and their median in brackets. The device runs between the
blocks, outside the measured time. In eager mode constants and random numbers for new memory wait for the operation that
reads them. A step's time is that of the thread that starts it, while the device is idle.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.experimental
from benchmarks import machine, page
from benchmarks.contestants import Contestant, Jax, OpenXla, Ours, Replay
from benchmarks.models import WORKLOADS

CALLS = 200
HEADING = "## The host's part"


def microseconds(call: Callable[[], object], blocks: int) -> str:
    times = []
    call()
    for _ in range(blocks):
        torch_xla.sync(wait=True)
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - started) / CALLS * 1e6)
    torch_xla.sync(wait=True)
    return least_and_median(times)


def least_and_median(times: list[float]) -> str:
    return f"{min(times):.2f} ({median(times):.2f})"


def calls(device: str) -> dict[str, Callable[[], object]]:
    a: Tensor = torch.ones(8, 8, device=device)
    b: Tensor = torch.ones(8, 8, device=device)
    leaf = torch.ones(8, 8, device=device, requires_grad=True)
    return {
        "`a + b`": lambda: a + b,
        "`a + b`, recorded by autograd": lambda: leaf + b,
        "`a * 2.0`": lambda: a * 2.0,
        "`a @ b`": lambda: a @ b,
        "`a.transpose(0, 1)` (a view)": lambda: a.transpose(0, 1),
        "`a.add_(b)` (in place)": lambda: a.add_(b),
        "`a[0].add_(1)` (through a view)": lambda: a[0].add_(1),
        "`torch.zeros(8, 8)` (a factory)": lambda: torch.zeros(8, 8, device=device),
        "`torch.rand(8, 8)`": lambda: torch.rand(8, 8, device=device),
        "`a.uniform_()`": lambda: a.uniform_(),
    }


def operations(blocks: int) -> str:
    """The table of calls."""
    rows = []
    on_cpu, on_xla = calls("cpu"), calls("xla")
    for name, call in on_cpu.items():
        row = [name, microseconds(call, blocks), microseconds(on_xla[name], blocks)]
        with torch_xla.experimental.eager_mode_context(True):
            rows.append([*row, microseconds(on_xla[name], max(3, blocks // 4))])
    rows.append(["`xm.mark_step()` with nothing recorded", "", microseconds(xm.mark_step, blocks), ""])
    return page.table(["µs a call", "CPU", "xla, recorded", "xla, eager mode"], rows)


def of_the_host(contestant: Contestant, turns: int) -> str:
    """Milliseconds of this thread for a step while the device is idle."""
    for _ in range(contestant.settles):
        contestant.step()
    times = []
    for _ in range(turns):
        contestant.wait()
        started = time.thread_time()
        contestant.step()
        times.append((time.thread_time() - started) * 1e3)
    contestant.wait()
    return least_and_median(times)


def steps(turns: int) -> str:
    """The table of training steps."""
    workload = WORKLOADS["encoder"]
    kinds = {"recorded": Ours, "`torch.compile`": OpenXla, "replayed": Replay, "by hand in JAX": Jax}
    rows = [[name, of_the_host(kind(workload, workload.dropout), turns)] for name, kind in kinds.items()]
    return page.table([f"training step of {workload.title}", "the host's, ms"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--write", type=Path, help="a Markdown file: the tables become a section of it")
    args = parser.parse_args()
    machine.confine()
    with machine.watched() as disturbance:
        tables = operations(args.blocks), steps(2 * args.blocks)
    page.publish(args.write, HEADING, "dispatch", __doc__, *tables, disturbance=disturbance)


if __name__ == "__main__":
    main()
