"""Measures what it costs to keep a history of what the device does, and to watch it closely.

    python -m benchmarks.sight [--turns 40]

The three ways take turns in one process, in changing order, and a ratio is the median of those of the turns: "off" is
`torch_xla.debug.keep_history(False)`, "kept" is how it is if nobody says otherwise, "closely" is what a profile or
`PT_XLA_DEBUG_LEVEL=2` adds. A time is that of the recording thread alone: what the device does meanwhile is the same.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch

import torch_xla
import torch_xla.debug as debug
from benchmarks import machine
from benchmarks.contestants import Ours
from benchmarks.models import WORKLOADS
from torch_xla._engine.metrics import events


@contextmanager
def off() -> Iterator[None]:
    debug.keep_history(False)
    yield


@contextmanager
def kept() -> Iterator[None]:
    debug.keep_history(True)
    yield


@contextmanager
def closely() -> Iterator[None]:
    debug.keep_history(True)
    heard: list[object] = []
    events.listen(heard.append, frames=8)
    yield
    events.unlisten(heard.append)


WAYS = {"off": off, "kept": kept, "closely": closely}


def tiny_step() -> Callable[[], None]:
    x = torch.ones(8, 8, device="xla")

    def step() -> None:
        nonlocal x
        x = x + 1
        torch_xla.sync()

    return step


def read() -> Callable[[], None]:
    x = torch.ones(8, 8, device="xla")
    return lambda: (x + 1).sum().item()


def upload() -> Callable[[], None]:
    host = torch.ones(8, 8)
    return lambda: host.to("xla")


def training_step(workload: str) -> Callable[[], None]:
    return Ours(WORKLOADS[workload], 0.0).step


CALLS: dict[str, tuple[Callable[[], Callable[[], None]], int]] = {
    "`x = x + 1; sync()`": (tiny_step, 50),
    "`(x + 1).sum().item()`": (read, 50),
    '`x.to("xla")`': (upload, 50),
    "training step of the MLP": (lambda: training_step("mlp"), 5),
    "training step of the encoder": (lambda: training_step("encoder"), 2),
}


def microseconds(call: Callable[[], None], times: int) -> float:
    """Of this thread, for one call. Python specialises its code to the way that was just turned on: not timed."""
    for _ in range(times):
        call()
    torch_xla.sync(wait=True)
    started = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - started) / times * 1e6


def row(name: str, make: Callable[[], Callable[[], None]], times: int, turns: int) -> str:
    call = make()
    for _ in range(5):
        call()
    measured: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(turns):
        for way in random.sample(list(WAYS), len(WAYS)):
            with WAYS[way]():
                measured[way].append(microseconds(call, times))
    ratios = {
        way: median(a / b for a, b in zip(measured[way], measured["off"], strict=True)) for way in ("kept", "closely")
    }
    return f"| {name} | {median(measured['off']):.1f} | {ratios['kept']:.3f} | {ratios['closely']:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=40)
    args = parser.parse_args()
    machine.confine()
    print(f"{machine.description()}\n")
    print("| µs of the host | off | kept / off | closely / off |\n|---|--:|--:|--:|")
    with machine.watched() as disturbance:
        for name, (make, times) in CALLS.items():
            print(row(name, make, times, args.turns))
    print(f"\nOther processes used {disturbance.share:.0%} of the cores meanwhile.")


if __name__ == "__main__":
    main()
