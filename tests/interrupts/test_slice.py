"""A slice of `python -m tests.interrupts`."""

import random

import pytest

from tests.interrupts.check import interrupted
from tests.interrupts.programs import PROGRAMS

# These are compiled at each step, by XLA or by Dynamo, or take long to compile.
SLOW = {"compiling", "torch.compile", "stages", "callbacks", "collectives", "ordinals"}

# Its threads take turns at the interpreter, which costs a tenth of a second on a busy machine.
COUNTS = {"threads": 100}


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in SLOW])
def test_nothing_is_lost_by_interrupts(name: str) -> None:
    found = interrupted(PROGRAMS[name], 10 if name == "threads" else 40, random.Random(0))
    assert not found.wrong and not found.lost, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_nothing_is_lost_by_many_interrupts(name: str) -> None:
    found = interrupted(PROGRAMS[name], COUNTS.get(name, 40 if name in SLOW else 400), random.Random(1))
    assert not found.wrong and not found.lost, str(found)
