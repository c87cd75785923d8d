"""Measures what it costs the host to count, to keep a history of what the device does, and to watch it closely.

    python -m benchmarks.sight [--sets 3] [--turns 30] [--write docs/benchmarks.md]

Each way is a process of its own: "none" is the engine with every hook taken out of its source
(`benchmarks/hookless.py`; that it counts nothing is checked), "off" keeps no history (`XLA_HISTORY=0`), "default" is as
it is if nobody says otherwise, "closely" has a listener for everything with eight frames, as a profile or
`PT_XLA_DEBUG_LEVEL=2` has. The processes of a set take turns, in changing order, and a ratio is the median of those of
the turns; shown is the median of the sets and, in brackets, the least and the greatest. A time is that of the recording
thread alone: what the device does meanwhile is the same.
"""

import argparse
import os
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
WAYS = ("none", "off", "default", "closely")
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
    """What is measured, built on the device."""
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


def serve(way: str) -> None:
    """Answers each name of a call that comes on the standard input with its microseconds."""
    machine.confine()
    if way == "none":
        hookless.install()
    import torch_xla
    from torch_xla._engine.metrics import events

    heard: deque[Any] = deque(maxlen=1000)
    if way == "closely":
        events.listen(heard.append, frames=8)
    known = calls()

    def wait() -> None:
        torch_xla.sync(wait=True)

    for name, call in known.items():
        for _ in range(3):
            microseconds(call, TIMES[name], wait)
    if bool(hookless.counted()) is (way == "none"):
        raise RuntimeError(f"the way {way!r} counted {hookless.counted()}")
    print("ready", flush=True)
    for line in sys.stdin:
        print(microseconds(known[line.strip()], TIMES[line.strip()], wait), flush=True)
    if way == "none" and hookless.counted():
        raise RuntimeError(f"hooks are left: {hookless.counted()}")


class Process:
    """One way, in a process of its own."""

    def __init__(self, way: str) -> None:
        command = [sys.executable, "-m", "benchmarks.sight", "--serve", way]
        settings = {"XLA_HISTORY": "0"} if way in ("none", "off") else {}
        self.way = way
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings}
        )

    def wait(self) -> None:
        if self._line() != "ready":
            raise RuntimeError(f"the process for {self.way!r} did not start; what it said stands above")

    def ask(self, name: str) -> float:
        assert self.process.stdin is not None
        print(name, file=self.process.stdin, flush=True)
        return float(self._line())

    def end(self) -> None:
        self.process.communicate()
        if self.process.returncode:
            raise RuntimeError(f"the process for {self.way!r} failed; what it said stands above")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def one_set(turns: int) -> dict[str, dict[str, list[float]]]:
    """By call and way, the microseconds of each turn."""
    processes = [Process(way) for way in WAYS]
    for each in processes:
        each.wait()
    measured: dict[str, dict[str, list[float]]] = {name: {way: [] for way in WAYS} for name in TIMES}
    for _ in range(turns):
        for name in TIMES:
            for each in random.sample(processes, len(processes)):
                measured[name][each.way].append(each.ask(name))
    for each in processes:
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
    parser.add_argument("--serve", choices=WAYS, help="be one of the processes")
    parser.add_argument("--write", type=Path, help="a Markdown file: the table becomes a section of it")
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    machine.confine()
    with machine.watched() as disturbance:
        found = table([one_set(args.turns) for _ in range(args.sets)])
    text = f"{found}\n\nOther processes used {disturbance.share:.0%} of the machine's cores meanwhile."
    print(f"{machine.description()}\n\n{text}")
    if args.write:
        what = __doc__.split("\n\n")[2].strip()
        page.put(args.write, HEADING, f"`python -m benchmarks.sight`: {what}\n\n{text}")


if __name__ == "__main__":
    main()
