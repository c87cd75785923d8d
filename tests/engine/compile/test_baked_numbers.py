"""Numbers that stay constants of a program although they change."""

from collections.abc import Iterator

import pytest
import torch

from torch_xla._engine.compile import baked_numbers
from torch_xla._engine.metrics import counters
from torch_xla._engine.step.schedule import clear_schedules


@pytest.fixture
def all_are_baked() -> Iterator[None]:
    baked_numbers.bake_all(True)
    clear_schedules()
    yield
    baked_numbers.bake_all(False)
    clear_schedules()


def compiled(x: torch.Tensor, factors: tuple[float, ...]) -> list[int]:
    found = []
    for factor in factors:
        before = counters.value_of("UncachedCompile") or 0
        torch.testing.assert_close((x * factor - factor).cpu(), x.cpu() * factor - factor)
        found.append((counters.value_of("UncachedCompile") or 0) - before)
    return found


def test_each_number_has_a_program_of_its_own(all_are_baked: None) -> None:
    x = torch.arange(5.0).to("xla")
    assert baked_numbers.are_asked()
    assert compiled(x, (1.25, 2.25, 3.25)) == [1, 1, 1]
    assert compiled(x, (2.25, 1.25, 3.25)) == [0, 0, 0]


def test_a_number_that_changes_is_an_argument_otherwise() -> None:
    assert not baked_numbers.are_asked()
    assert compiled(torch.arange(7.0).to("xla"), (1.25, 2.25, 3.25))[2] == 0
