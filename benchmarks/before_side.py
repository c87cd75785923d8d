"""Measures in one checkout, whose package and benchmarks come first on the path: one answer for each line it is sent.

`benchmarks.before` runs this file, by its path, for each of the two sides.
"""

import itertools
import json
import logging
import resource
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

import torch_xla
from benchmarks.contestants import Ours, Replay
from benchmarks.models import WORKLOADS

ADDITIONS, STEPS = 3000, 10
sizes = itertools.count(100)


@cache
def contestant(kind: type[Ours], name: str) -> Ours:
    """A way of running a workload, with the steps behind it after which each is like the next."""
    made = kind(WORKLOADS[name], WORKLOADS[name].dropout)
    for _ in range(made.settles):
        made.step()
    made.wait()
    return made


def add() -> float:
    """Microseconds for an addition of two tensors that have values."""
    a, b = torch.ones(8, device="xla"), torch.ones(8, device="xla")
    torch_xla.sync(wait=True)
    start = time.perf_counter()
    for _ in range(ADDITIONS):
        a + b
    took = time.perf_counter() - start
    torch_xla.sync()
    return took / ADDITIONS * 1e6


def new(clock: Callable[[], float]) -> float:
    """Milliseconds for programs of a few operations that were never seen, from the first call to the value."""
    logging.getLogger("torch_xla.recompiles").setLevel(logging.ERROR)  # that they are new is meant
    took = []
    for _ in range(STEPS):
        x = torch.ones(next(sizes)).to("xla")
        start = clock()
        ((x + 1) * x).sigmoid().sum().item()
        took.append(clock() - start)
    return sorted(took)[STEPS // 2] * 1e3


def record() -> float:
    """Return the milliseconds to record a step without computing it."""
    ours = contestant(Ours, "encoder")
    took = 0.0
    for _ in range(STEPS):
        start = time.perf_counter()
        kept = ours.record()
        took += time.perf_counter() - start
        torch_xla.sync()
        del kept
    ours.wait()
    return took / STEPS * 1e3


def steps(name: str, kind: type[Ours] = Ours) -> float:
    """Milliseconds for a step, when several follow each other."""
    ours = contestant(kind, name)
    start = time.perf_counter()
    for _ in range(STEPS):
        ours.step()
    ours.wait()
    return (time.perf_counter() - start) / STEPS * 1e3


def replay(clock: Callable[[], float]) -> float:
    """Milliseconds that the host takes for a replayed step, while the device has nothing else to do."""
    ours = contestant(Replay, "encoder")
    took = []
    for _ in range(STEPS):
        start = clock()
        ours.step()
        took.append(clock() - start)
        ours.wait()
    return sorted(took)[STEPS // 2] * 1e3


def unqueued() -> float:
    """Return seconds of wall time, without the time in which this thread waited for a core.

    If the device computes on the same cores, its threads displace the host's for a part of the step that the scheduler
    decides. The rest is the time of the thread, and its waits for locks, the interpreter and programs.
    """
    queued = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return time.perf_counter() - queued * 1e-9


def first() -> float:
    """Seconds for the first four steps, of a process that has imported everything."""
    start = time.perf_counter()
    ours = Ours(WORKLOADS["encoder"], WORKLOADS["encoder"].dropout)
    for _ in range(4):
        ours.step()
    ours.wait()
    return time.perf_counter() - start


def memory() -> float:
    """The most MiB that the process had while it did four steps."""
    ours = Ours(WORKLOADS["gpt2_like"], WORKLOADS["gpt2_like"].dropout)
    for _ in range(4):
        ours.step()
    ours.wait()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


MEASURES: dict[str, Callable[[], float]] = {
    "add": add,
    "new": lambda: new(time.thread_time),
    "new_everywhere": lambda: new(time.process_time),
    "record": record,
    "encoder": lambda: steps("encoder"),
    "gpt2_like": lambda: steps("gpt2_like"),
    "resnet_like": lambda: steps("resnet_like"),
    "replay": lambda: replay(time.perf_counter),
    "unqueued": lambda: replay(unqueued),
    "thread": lambda: replay(time.thread_time),
    "replayed": lambda: steps("encoder", Replay),
    "first": first,
    "memory": memory,
}


def main() -> None:
    """Answers what it is asked by its argument, or line by line."""
    asked = sys.argv[1:] if sys.argv[1] != "serve" else sys.stdin
    for line in asked:
        print(json.dumps(MEASURES[line.strip()]()), flush=True)


if __name__ == "__main__":
    main()
