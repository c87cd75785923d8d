"""How exactly 32-bit floats are multiplied is a choice of the user's, and part of the program."""

import re
from collections.abc import Iterator

import pytest
import torch

from torch_xla._engine import precision
from torch_xla._engine.step.pending_text import stablehlo_text


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = precision.in_force
    yield
    precision.choose(before)


def test_nothing_is_rounded_unless_it_is_asked_for() -> None:
    assert precision.in_force == "highest"


@pytest.mark.parametrize("name", precision.NAMES)
def test_a_product_is_lowered_with_it(name: str) -> None:
    precision.choose(name)
    x = torch.ones(2, 3, device="xla")
    text = stablehlo_text([x @ x.mT])
    (said,) = re.findall(r"precision = \[(\w+), (\w+)\]", text)
    assert said == (name.upper(), name.upper())


def test_another_word_is_refused_with_those_that_there_are() -> None:
    precision.choose("high")
    with pytest.raises(ValueError, match="^the precision .* is 'medium'; it must be one of 'default', 'high', 'highe"):
        precision.choose("medium")
    assert precision.in_force == "high"
