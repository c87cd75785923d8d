"""Measure the saving and the cost of each way to use less memory.

    python -m benchmarks.choices [--layers 4] [--width 256] [--rounds 7] [--only-given-away]
                                 [--write docs/memory_by_choice.md]

Decoder layers of GPT-2 are trained by SGD on 8 texts of 128 tokens. Memory is the planned peak of a step; steps are
milliseconds of processor time, the ways in turn. The step in slices is pure. In the second table a tensor of 256 MiB
becomes another one of its size; memory is the process's peak (`VmHWM`) beyond the first tensor, with an allocator that
returns freed memory at once (`MALLOC_MMAP_THRESHOLD_`).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch
from torch import nn

import torch_xla
from benchmarks import machine, page
from benchmarks.models import GptBlock
from torch_xla import debug
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host
from torch_xla.utils.checkpoint import checkpoint

HEADING = "## What each saves and costs"
TEXTS, TOKENS, SLICES = 8, 128, 4

Step = Callable[[], None]


class Training:
    """A step of training, by one of the ways."""

    def __init__(self, layers: int, width: int) -> None:
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(GptBlock(width, 4, 0.0) for _ in range(layers))).to("xla")
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=1e-3)
        self.x = torch.randn(TEXTS, TOKENS, width).to("xla")

    def _loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()

    def _finish(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch_xla.sync()

    def as_it_stands(self) -> None:
        self._loss(self.x).backward()
        self._finish()

    def computed_again(self) -> None:
        x = self.x
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        x.square().mean().backward()
        self._finish()

    def in_slices(self) -> None:
        slices = self.x.view(SLICES, TEXTS // SLICES, *self.x.shape[1:])
        gradient_accumulation(self._loss, (slices,), self.layers, is_step_pure=True)
        self._finish()

    def sent_to_the_host(self) -> None:
        with torch.autograd.graph.saved_tensors_hooks(place_to_host, place_to_device):
            loss = self._loss(self.x)
        loss.backward()
        self._finish()


def measured(ways: dict[str, Step], rounds: int) -> list[list[str]]:
    """A row for each way; the others are compared with the first."""
    for step in ways.values():
        for _ in range(3):
            step()
    torch_xla.sync(wait=True)
    turns = [{name: milliseconds(step) for name, step in ways.items()} for _ in range(rounds)]
    first, rows = next(iter(ways)), []
    for name, step in ways.items():
        peak = debug.plan(step, steps=1).peak / 2**20
        ratio = median(turn[name] / turn[first] for turn in turns)
        rows.append([name, f"{peak:.0f}", f"{min(turn[name] for turn in turns):.1f}", f"{ratio:.2f}"])
    return rows


def milliseconds(step: Step) -> float:
    started = time.process_time()
    step()
    torch_xla.sync(wait=True)
    return 1e3 * (time.process_time() - started)


ELEMENTS, UPDATES = 1 << 26, 10
GIVEN = {
    "held": "held, and nothing is said",
    "dropped": "not held any more",
    "marked": "held, `_set_buffer_donation`",
    "operator": "held, `dynamo_set_buffer_donor_`",
}


GIVEN_HEADER = ["the old tensor is", "memory, MiB", "update, ms"]


def give_away(way: str) -> None:
    """Prints MiB and milliseconds of one way to update a tensor."""
    state = torch.ones(ELEMENTS, device="xla")
    torch_xla.sync(wait=True)
    before, times = memory("VmRSS"), []
    for _ in range(UPDATES):
        started = time.process_time()
        old = state
        if way == "dropped":
            del old
        elif way == "marked":
            torch_xla._XLAC._set_buffer_donation(old, True)
        elif way == "operator":
            torch.ops.xla.dynamo_set_buffer_donor_(old, True)
        state = state * 0.5 + 1
        torch_xla.sync(wait=True)
        times.append(1e3 * (time.process_time() - started))
    print(json.dumps([memory("VmHWM") - before, min(times)]))


def memory(name: str) -> float:
    """Return the system's number for the memory of this process, in MiB."""
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(name))
    return int(line.split()[1]) / 1024


def given_away() -> Iterator[list[str]]:
    """A row for each way, each in a process of its own, which returns what it frees at once."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    for way, words in GIVEN.items():
        command = [sys.executable, "-m", "benchmarks.choices", "--give-away", way]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        mebibytes, each = json.loads(done.stdout.splitlines()[-1])
        yield [words, f"{mebibytes:.0f}", f"{each:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", type=Path, help="a Markdown file: the table becomes a section of it")
    parser.add_argument("--only-given-away", action="store_true", help="the second table alone")
    parser.add_argument("--give-away", choices=GIVEN, help="measures this way in this process")
    args = parser.parse_args()
    machine.confine()
    if args.give_away:
        give_away(args.give_away)
        return
    if args.only_given_away:
        print(page.table(GIVEN_HEADER, list(given_away())))
        return
    training = Training(args.layers, args.width)
    trained: dict[str, Step] = {
        "training as it stands": training.as_it_stands,
        "activations computed again": training.computed_again,
        f"a batch in {SLICES} slices": training.in_slices,
        "activations sent to the host": training.sent_to_the_host,
    }
    with machine.watched() as disturbance:
        rows = measured(trained, args.rounds)
        given = list(given_away())
    header = ["way", "memory, MiB", "step, ms", "ratio"]
    text = page.table(header, rows) + "\n\n" + page.table(GIVEN_HEADER, given)
    page.publish(args.write, HEADING, "choices", __doc__, text, disturbance=disturbance)


if __name__ == "__main__":
    main()
