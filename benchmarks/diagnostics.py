"""Measure the host's cost of counting, of keeping a history of the device's work, and of watching it closely.

    python -m benchmarks.diagnostics [--sets 3] [--turns 30] [--write docs/benchmarks.md]

"none" is the engine without hooks (`benchmarks/hookless.py`), in a process of its own. A second process measures "off",
which counts but keeps no history (`XLA_HISTORY=0`), "default", and "closely", with a listener for everything and eight
frames, as under a profile or `PT_XLA_DEBUG_LEVEL=2`. The table has the median of several sets of processes, with the
least and the greatest in brackets, because the ratio to "none" depends on the memory layout of a process. Times are
those of the recording thread.
"""

import argparse
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import hookless, machine, page

HEADING = "## The cost of seeing"
WAYS = {"none": "hookless", "off": "ours", "default": "ours", "closely": "ours"}  # and the process that has them
COMPARED = (("off", "none"), ("default", "none"), ("default", "off"), ("closely", "off"))

# How often a call is made in one turn.
TIMES = {
    "`a + b`": 200,
    "`x = x + 1; sync()`": 50,
    "`(x + 1).sum().item()`": 50,
    '`t.to("xla")`': 50,
    "training step of the MLP": 5,
    "training step of the encoder": 2,
}


def calls() -> dict[str, Callable[[], object]]:
    """Return the calls to measure, built on the device."""
    import torch  # not before a process knows whether its engine has hooks

    import torch_xla
    from benchmarks.contestants import Ours
    from benchmarks.models import WORKLOADS

    host = torch.ones(8, 8)
    a, b = host.to("xla"), host.to("xla")
    x = host.to("xla")

    def tiny_step() -> None:
        nonlocal x
        x = x + 1
        torch_xla.sync()

    made = (
        lambda: a + b,
        tiny_step,
        lambda: (a + 1).sum().item(),
        lambda: host.to("xla"),
        Ours(WORKLOADS["mlp"], 0.0).step,
        Ours(WORKLOADS["encoder"], 0.0).step,
    )
    return dict(zip(TIMES, made, strict=True))


def microseconds(call: Callable[[], object], times: int, wait: Callable[[], None]) -> float:
    """Of this thread, for one call."""
    for _ in range(2):  # after the pause: into the processor's caches, and onto a path that the tape knows
        for _ in range(times):
            call()
        wait()
    started = time.thread_time()
    for _ in range(times):
        call()
    seconds = time.thread_time() - started
    wait()
    return seconds / times * 1e6


def serve(engine: str) -> None:
    """Answers each way and name of a call that come on the standard input with the microseconds."""
    machine.confine()
    if engine == "hookless":
        hookless.install()
    import torch_xla
    import torch_xla.debug as debug
    from torch_xla._engine.metrics import events

    heard: deque[Any] = deque(maxlen=1000)
    known = calls()

    def wait() -> None:
        torch_xla.sync(wait=True)

    for name, call in known.items():
        for _ in range(3):
            microseconds(call, TIMES[name], wait)
    print("ready", flush=True)
    for line in sys.stdin:
        way, name = line.strip().split("\t")
        debug.keep_history(way in ("default", "closely"))
        if way == "closely":
            events.listen(heard.append, frames=8)
        print(microseconds(known[name], TIMES[name], wait), flush=True)
        events.unlisten(heard.append)
    if bool(hookless.counted()) is (engine == "hookless"):
        raise RuntimeError(f"the engine {engine!r} counted {hookless.counted()}")


class Process:
    """An engine in a process of its own."""

    def __init__(self, engine: str) -> None:
        command = [sys.executable, "-m", "benchmarks.diagnostics", "--serve", engine]
        self.engine = engine
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait(self) -> None:
        if self._line() != "ready":
            raise RuntimeError(f"the process for {self.engine!r} did not start; what it said stands above")

    def ask(self, way: str, name: str) -> float:
        assert self.process.stdin is not None
        print(f"{way}\t{name}", file=self.process.stdin, flush=True)
        return float(self._line())

    def end(self) -> None:
        self.process.communicate()
        if self.process.returncode:
            raise RuntimeError(f"the process for {self.engine!r} failed; what it said stands above")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def one_set(turns: int) -> dict[str, dict[str, list[float]]]:
    """By call and way, the microseconds of each turn."""
    processes = {engine: Process(engine) for engine in set(WAYS.values())}
    for each in processes.values():
        each.wait()
    measured: dict[str, dict[str, list[float]]] = {name: {way: [] for way in WAYS} for name in TIMES}
    for _ in range(turns):
        for name in TIMES:
            for way in random.sample(list(WAYS), len(WAYS)):
                measured[name][way].append(processes[WAYS[way]].ask(way, name))
    for each in processes.values():
        each.end()
    return measured


def table(sets: list[dict[str, dict[str, list[float]]]]) -> str:
    """One row for each call."""
    rows = []
    for name in TIMES:
        row = [name, f"{median(time for each in sets for time in each[name]['none']):.1f}"]
        for way, base in COMPARED:
            ratios = [median(a / b for a, b in zip(each[name][way], each[name][base], strict=True)) for each in sets]
            row.append(f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
        rows.append(row)
    return page.table(["µs of the host", "none", *(f"{way} / {base}" for way, base in COMPARED)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=3, help="how many sets of processes")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--serve", choices=set(WAYS.values()), help="be one of the processes")
    parser.add_argument("--write", type=Path, help="a Markdown file: the table becomes a section of it")
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    machine.confine()
    with machine.watched() as disturbance:
        found = table([one_set(args.turns) for _ in range(args.sets)])
    page.publish(args.write, HEADING, "diagnostics", __doc__, found, disturbance=disturbance)


if __name__ == "__main__":
    main()
