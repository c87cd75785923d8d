"""Measure the cost of several processes: their start, their step, their memory, and the agreement on collectives.

    python -m benchmarks.process_growth [--counts 1,2,4,8] [--steps 60] [--write docs/benchmarks.md]

Each number of processes trains one network, each process on its own batch, with `xm.optimizer_step`. "Start" is the
time from the call of `xmp.spawn` (fork) until the last process has the sum of one number of each; "a step" is the
median of the later half of the steps, of process 0; "agreement" is the part of it for comparing collectives, and the
number of compared programs; memory is that of process 0 at the end. If there are more processes than cores, a step
grows with the number of processes, whatever they exchange.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from benchmarks import machine, page
from torch_xla._engine.distributed import process_launch
from torch_xla._engine.step import executor

HEADING = "## Numbers of processes"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 16))


def resident_mebibytes() -> float:
    """The memory of this process."""
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


class Watched:
    """Counts the seconds that agreeing takes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        executor.compare_before_start = self._timed(executor.compare_before_start)  # type: ignore[assignment]
        executor.note_start = self._timed(executor.note_start)  # type: ignore[assignment]

    def _timed(self, function: Any) -> Any:
        def call(*args: Any) -> None:
            start = time.perf_counter()
            function(*args)
            self.seconds += time.perf_counter() - start

        return call


def one(index: int, folder: str, began: float, steps: int) -> None:
    """One of the processes."""
    watched = Watched()
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(1, device="xla")).item()
    start = time.time() - began
    model = network().to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(32, 256, device="xla"), torch.randint(0, 16, (32,), device="xla")
    seconds, agreeing = [], []
    for _ in range(steps):
        before, begin = watched.seconds, time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync(wait=True)
        seconds.append(time.perf_counter() - begin)
        agreeing.append(watched.seconds - before)
    half = steps // 2
    found = {
        "start": start, "step": median(seconds[half:]), "agreeing": median(agreeing[half:]),
        "compared": met.counter_value("ComparedCollectives") or 0, "memory": resident_mebibytes(),
    }  # fmt: skip
    (Path(folder) / str(index)).write_text(json.dumps(found))


def measured(count: int, steps: int) -> dict[str, float]:
    """Return the measurements of `count` processes."""
    with tempfile.TemporaryDirectory() as folder:
        process_launch.start(one, (folder, time.time(), steps), count, True, False, "fork")
        all_found = [json.loads((Path(folder) / str(index)).read_text()) for index in range(count)]
    result: dict[str, float] = {**all_found[0], "start": max(each["start"] for each in all_found)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="1,2,4,8")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    machine.confine()
    rows: list[list[str]] = []
    first: dict[str, float] = {}
    with machine.watched() as disturbance:
        for count in map(int, given.counts.split(",")):
            found = measured(count, given.steps)
            first = first or found
            rows.append([
                str(count), f"{found['start']:.2f} s", f"{found['start'] / first['start']:.2f}",
                f"{found['step'] * 1e3:.2f} ms", f"{found['step'] / first['step']:.2f}",
                f"{found['agreeing'] * 1e6:.0f} µs", f"{found['compared']:.0f}", f"{found['memory']:.0f} MiB",
            ])  # fmt: skip
    header = ["processes", "start", "/ first", "a step", "/ first", "agreement", "compared", "memory"]
    page.publish(given.write, HEADING, "process_growth", __doc__, page.table(header, rows), disturbance=disturbance)


if __name__ == "__main__":
    main()
