"""Measures `scan_layers` beside layers one after the other: compile time, steady steps, memory.

    python -m benchmarks.scanned [--layers 50] [--width 128] [--tokens 256] [--rounds 7] [--write docs/benchmarks.md]

Decoder layers of GPT-2 are trained by SGD; "scanned, pure" is `scan_layers(..., is_layer_pure=True)` and finds the
programs of "scanned" compiled; "one layer" is a stack of one. Compile seconds are those of all programs up to the third
step; tracing is in the rest of these steps. Steps are milliseconds of processor time, all kinds in turn. Memory is the
peak of a step's plan (`torch_xla.debug.plan`).
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import torch_xla
from benchmarks import machine, page
from benchmarks.contestants import Compiles
from benchmarks.models import GptBlock
from torch_xla import debug
from torch_xla.experimental.scan_layers import scan_layers

HEADING = "## Layers as a loop"
FIRST_STEPS = 3


class Stack:
    """A stack of layers that is trained in one of the ways."""

    def __init__(self, layers: int, width: int, tokens: int, scanned: bool | None) -> None:
        torch.manual_seed(0)
        self.layers = nn.ModuleList(GptBlock(width, 4, 0.0) for _ in range(layers)).to("xla")
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=1e-3)
        self.x = torch.randn(2, tokens // 2, width).to("xla")
        self.run: Callable[[torch.Tensor], Any] = nn.Sequential(*self.layers)
        if scanned is not None:
            self.run = lambda x: scan_layers(self.layers, x, is_layer_pure=scanned)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.run(self.x).square().mean().backward()
        self.optimizer.step()
        torch_xla.sync()

    def begin(self) -> tuple[float, float]:
        """Seconds of compiling, and of processor time for everything else, in the first steps."""
        torch_xla.sync(wait=True)
        before, started = Compiles.so_far(), time.perf_counter()
        for _ in range(FIRST_STEPS):
            self.step()
        torch_xla.sync(wait=True)
        compiling = (Compiles.so_far() - before).seconds
        return compiling, time.perf_counter() - started - compiling

    def milliseconds(self, steps: int = 2) -> float:
        started = time.process_time()
        for _ in range(steps):
            self.step()
        torch_xla.sync(wait=True)
        return 1e3 * (time.process_time() - started) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", type=Path, help="a Markdown file: the table becomes a section of it")
    args = parser.parse_args()
    machine.confine()
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""
    ways = {"one layer": (1, None), "one after the other": (args.layers, None), "scanned": (args.layers, False)}
    ways["scanned, pure"] = args.layers, True
    rows = []
    with machine.watched() as disturbance:
        stacks = {name: Stack(count, args.width, args.tokens, scanned) for name, (count, scanned) in ways.items()}
        first = {name: stack.begin() for name, stack in stacks.items()}
        turns = [{name: stack.milliseconds() for name, stack in stacks.items()} for _ in range(args.rounds)]
        for name, stack in stacks.items():
            ratio = median(turn[name] / turn["one after the other"] for turn in turns)
            peak = debug.plan(stack.step, steps=1).peak / 2**20
            step = min(turn[name] for turn in turns)
            rows.append([name, *(f"{each:.2f}" for each in first[name]), f"{step:.1f}", f"{ratio:.2f}", f"{peak:.0f}"])
    header = [f"{args.layers} layers", "compiling, s", "first steps besides, s", "step, ms", "ratio", "memory, MiB"]
    page.publish(args.write, HEADING, "scanned", __doc__, page.table(header, rows), disturbance=disturbance)


if __name__ == "__main__":
    main()
