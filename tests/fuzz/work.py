"""What a process of the run does: writes programs and checks them."""

import random

import torch

from tests.support.programs import interpreted
from torch_xla._engine.tensor.sync import clear_schedules

from .check import check
from .program import write_program

SHORTEST, LONGEST = 5, 50
# One program of so many is compiled by XLA; the others run operation by operation, which is much quicker.
COMPILED = 50


def start() -> None:
    """Settles a new process."""
    torch.set_num_threads(1)


def check_programs(task: tuple[range, bool]) -> tuple[int, list[tuple[int, str]]]:
    """How many programs were checked, and the seeds and scripts of those that differ."""
    found = []
    seeds, show = task
    for seed in seeds:
        lines = write_program(seed, random.Random(seed).randint(SHORTEST, LONGEST))
        if show:
            print("\n".join(line.text + (f"  # {line.raises}" if line.raises else "") for line in lines))
        if seed % COMPILED:
            with interpreted():
                failure = check(lines)
        else:
            failure = check(lines)
        if failure is not None:
            found.append((seed, failure.script()))
        clear_schedules()
    return len(seeds), found
