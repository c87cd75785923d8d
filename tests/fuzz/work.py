"""The work of a process: write programs and check them."""

import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import jax
import torch

from tests.support.programs import interpreted
from torch_xla._engine.compiled import eager
from torch_xla._engine.step.schedule import clear_schedules

from .check import Failure, difference, forget, shortened
from .program import Program, write_program
from .writer import Swarm

SHORTEST, LONGEST, MEAN = 5, 50, 12
# The number of consecutive programs from one swarm.
PROGRAMS_OF_A_SWARM = 1000
# One of this number of programs runs in eager mode, where every operation ends a step.
EAGER = 8
# The number of similar failures that each process shortens; the others are only counted.
SHORTENED = 2
_told: Counter[str] = Counter()


@dataclass
class Found:
    """The results of a task."""

    programs: int = 0
    operations: int = 0
    ways: Counter[str] = field(default_factory=Counter)  # how many programs ran in which way
    failures: list[tuple[int, Failure]] = field(default_factory=list)


def start(programs: str) -> None:
    """Set up a new process. XLA's compiled programs are kept in the folder `programs` for later ones."""
    torch.set_num_threads(1)
    jax.config.update("jax_compilation_cache_dir", programs)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def programs_of(seeds: range) -> Iterator[tuple[int, Program]]:
    """The programs of some seeds of one swarm. Those before them are written too: what is new depends on them."""
    number = seeds.start // PROGRAMS_OF_A_SWARM
    swarm = Swarm(random.Random(f"swarm {number}"))
    for seed in range(number * PROGRAMS_OF_A_SWARM, seeds.stop):
        dice = random.Random(seed)
        length = min(LONGEST, SHORTEST + int(dice.expovariate(1 / (MEAN - SHORTEST))))
        program = write_program(dice, swarm, length)
        if seed in seeds:
            yield seed, program


def way_of(seed: int, compiled: int) -> str:
    """How the program of a seed runs: XLA compiles one whole program of `compiled`."""
    if compiled and seed % compiled == 0:
        return "compiled"
    return "eager" if seed % EAGER == 1 else "interpreted"


@contextmanager
def running(way: str) -> Iterator[None]:
    """Runs programs in one of the ways."""
    with ExitStack() as stack:
        if way != "compiled":
            stack.enter_context(interpreted())
        if way == "eager":
            eager.switch(True)
            stack.callback(eager.switch, False)
        yield
    clear_schedules()


def check_programs(task: tuple[range, int]) -> Found:
    """Checks the programs of some seeds."""
    found = Found()
    seeds, compiled = task
    for seed, program in programs_of(seeds):
        way = way_of(seed, compiled)
        with running(way):
            text = difference(program)
            if text:
                forget()
                kind = re.sub(r"t?-?\d+(\.\d+)?", "_", text)[:60]
                _told[kind] += 1
                failure = shortened(program, text) if _told[kind] <= SHORTENED else Failure(program, text)
                found.failures.append((seed, failure))
        found.programs += 1
        found.operations += len(program.lines)
        found.ways[way] += 1
    return found
