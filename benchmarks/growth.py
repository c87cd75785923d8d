"""Measures how costs grow: with layers, batch and parameters of a model, and with the number of cached programs.

    python -m benchmarks.growth [--quick] [--write docs/benchmarks.md]

"recording" is the time until a step can be started while the device is idle. A look-up finds a step's program by what
was recorded; the programs that fill the cache are recorded and not compiled. `benchmarks.depth` measures compile time.
"""

import argparse
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import nn

import torch_xla
from benchmarks import machine, page
from benchmarks.contestants import Eager, Ours, Replay
from benchmarks.models import WORKLOADS, Encoder, Workload, values
from benchmarks.run import WARM_UP_STEPS, timed, timed_recording
from torch_xla._engine.step import schedule
from torch_xla._engine.tensor.device import LOCK, Device, device_for

HEADING = "## Cost as work grows"
LAYERS = (1, 2, 4, 8, 16, 32, 48)
BATCHES = (1, 4, 16, 64, 256)
WIDTHS = (128, 256, 512, 1024, 2048)
PROGRAMS = (1, 10, 100, 1_000, 10_000)


def steps_of(contestant: Eager | Ours | Replay, rounds: int) -> float:
    """Milliseconds of a step: the median of `rounds` turns."""
    for _ in range(WARM_UP_STEPS):
        contestant.step()
    contestant.wait()
    steps = min(20, max(2, round(300 / timed(contestant, 1))))
    return median(timed(contestant, steps) for _ in range(rounds))


def by_layers(layers: Sequence[int], rounds: int) -> str:
    """Measure the encoder with these numbers of layers."""
    rows = []
    for count in layers:
        workload = dataclasses.replace(WORKLOADS["encoder"], build=lambda rate, count=count: Encoder(rate, count))
        eager, ours = (kind(workload, 0.1) for kind in (Eager, Ours))
        theirs, step = steps_of(eager, rounds), steps_of(ours, rounds)
        assert isinstance(ours, Ours)
        recording = timed_recording(ours, 10)
        rows.append(
            [f"{count}", f"{1e3 / step:.1f}", f"{1e3 / theirs:.1f}", f"{recording:.2f}", f"{recording / count:.2f}"]
        )
    return page.table(
        ["layers", "steps/s", "eager, steps/s", "recording a step, ms", "recording / layers, ms"],
        rows,
    )


def by_batch(batches: Sequence[int], rounds: int) -> str:
    """Measure the encoder with these batch sizes."""
    rows = []
    for count in batches:
        workload = dataclasses.replace(WORKLOADS["encoder"], batch=values(count, 16, 64))
        theirs, step, replay = (steps_of(kind(workload, 0.1), rounds) for kind in (Eager, Ours, Replay))
        rows.append([f"{count}", *(f"{1e3 / each * count:.0f}" for each in (step, replay, theirs))])
    return page.table(["batch", "sequences/s", "replayed, sequences/s", "eager, sequences/s"], rows)


def by_parameters(widths: Sequence[int], rounds: int) -> str:
    """Measure a network of four square layers of these widths."""
    rows = []
    for width in widths:
        workload = Workload(f"{width}", "32", lambda _, width=width: square(width), values(32, width))
        theirs, step, replay = (steps_of(kind(workload, 0.0), rounds) for kind in (Eager, Ours, Replay))
        count = sum(parameter.numel() for parameter in square(width).parameters())
        rows.append([f"{count / 1e6:.2f}", *(f"{1e3 / each:.1f}" for each in (step, replay, theirs))])
    return page.table(["parameters, millions", "steps/s", "replayed, steps/s", "eager, steps/s"], rows)


def square(width: int) -> nn.Module:
    """Four layers with as many outputs as inputs."""
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())))


def look_up(device: Device, record: Callable[[], object]) -> float:
    """Return the microseconds to find the program of the operations that `record` records; drop the operations."""
    kept = record()
    with LOCK:
        seen = schedule.look(device.tape)
        started = time.perf_counter()
        schedule.find(device, device.tape, seen, None)
        seconds = time.perf_counter() - started
    torch_xla.sync()
    del kept
    return seconds * 1e6


def by_programs(counts: Sequence[int], turns: int = 40) -> str:
    """Measure the look-up of a small program and the encoder's in a cache with these numbers of programs."""
    os.environ["XLA_COMPILATION_CACHE_SIZE"] = str(2 * max(counts))
    device = device_for(torch.device("xla"))
    ours = Ours(WORKLOADS["encoder"], 0.0)
    x = torch.ones(8, device="xla")
    for _ in range(WARM_UP_STEPS):
        ours.step()
        look_up(device, lambda: x + 1)
    rows, filled = [], 2
    for count in counts:
        for number in range(filled, count):
            fill(device, number)
        filled = max(filled, count)
        small = median(look_up(device, lambda: x + 1) for _ in range(turns))
        large = median(look_up(device, ours.record) for _ in range(turns))
        rows.append([f"{count:,}", f"{small:.1f}", f"{large:.0f}"])
    return page.table(["programs in the cache", "look-up of `x + 1`, µs", "look-up of the encoder's step, µs"], rows)


def fill(device: Device, number: int) -> None:
    """Adds a program that is not compiled: additions where `number` has a one among its bits, products elsewhere."""
    with LOCK:
        y = torch.ones(8, device="xla")
        for bit in range(14):
            y = y + y if number >> bit & 1 else y * y
        tape = device.tape
        schedule.find(device, tape, schedule.look(tape), None)
        device.tape, tape.ended = device.new_tape(), True
        del y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="fewer sizes between the smallest and the largest, one turn"
    )
    parser.add_argument("--write", type=Path, help="a Markdown file: the tables become a section of it")
    args = parser.parse_args()
    machine.confine()
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""
    rounds = 1 if args.quick else 3
    with machine.watched() as disturbance:
        tables = [
            by_programs(PROGRAMS[:: 2 if args.quick else 1]),
            by_layers(LAYERS[:: 3 if args.quick else 1], rounds),
            by_batch(BATCHES[:: 2 if args.quick else 1], rounds),
            by_parameters(WIDTHS[:: 2 if args.quick else 1], rounds),
        ]
    page.publish(args.write, HEADING, "growth", __doc__, *tables, disturbance=disturbance)


if __name__ == "__main__":
    main()
