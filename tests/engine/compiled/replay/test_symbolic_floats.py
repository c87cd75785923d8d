"""Numbers that note what is made of them: the value is the float's, and the text gives it again."""

import copy
import json
import math
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.compiled.replay.symbolic_floats import HostNumber

BINARY = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
)  # fmt: skip
UNARY = (operator.neg, operator.pos, abs)
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
numbers = st.floats() | st.integers(-(1 << 60), 1 << 60) | st.booleans()


class Recorder:
    """A recorder that keeps the operations."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.outcomes: list[tuple[str, bool]] = []
        self.looks = 0

    def start(self, value: float) -> HostNumber:
        number: HostNumber = self.computed(value, f"float('{value!r}')")
        return number

    def computed(self, value: Any, text: str) -> Any:
        if type(value) is not float:
            return value
        self.lines.append(f"v{len(self.lines)} = {text}")
        return HostNumber(self, value, f"v{len(self.lines) - 1}")

    def is_so(self, text: str, outcome: bool) -> bool:
        self.outcomes.append((text, outcome))
        return outcome

    def looked_at(self, number: HostNumber) -> None:
        self.looks += 1

    def again(self) -> dict[str, Any]:
        names: dict[str, Any] = {}
        exec("\n".join(self.lines), names)
        return names


def outcome(function: Callable[..., Any], *operands: Any) -> Any:
    """Return the result of a function as text, or the type of its error."""
    try:
        result = function(*operands)
    except (ArithmeticError, TypeError) as error:
        return type(error)
    return repr(result.value) if type(result) is HostNumber else repr(result)


@given(st.floats(), numbers, st.sampled_from(BINARY), st.booleans())
def test_arithmetic_is_that_of_floats_and_is_noted(one: float, other: Any, function: Any, turned: bool) -> None:
    notes = Recorder()
    number = notes.start(one)
    ours = (other, number) if turned else (number, other)
    theirs = (other, one) if turned else (one, other)
    assert outcome(function, *ours) == outcome(function, *theirs)
    if len(notes.lines) == 2:
        assert repr(notes.again()["v1"]) == outcome(function, *theirs)
    assert not notes.looks


@given(st.floats(), st.floats(), st.sampled_from(BINARY), st.sampled_from(UNARY))
def test_numbers_of_one_trace_are_combined(one: float, other: float, function: Any, then: Any) -> None:
    notes = Recorder()
    first, second = notes.start(one), notes.start(other)

    def both(a: Any, b: Any) -> Any:
        return then(function(a, b))

    assert outcome(both, first, second) == outcome(both, one, other)
    last = notes.lines[-1].partition(" ")[0]
    if len(notes.lines) > 2 and isinstance(outcome(both, one, other), str):
        assert repr(notes.again()[last]) == outcome(both, one, other)


@given(st.floats(), numbers, st.sampled_from(COMPARISONS), st.booleans())
def test_comparisons_are_those_of_floats_and_are_noted(one: float, other: Any, function: Any, turned: bool) -> None:
    notes = Recorder()
    number = notes.start(one)
    found = function(other, number) if turned else function(number, other)
    assert found is (function(other, one) if turned else function(one, other))
    ((text, noted),) = notes.outcomes
    assert noted is found is eval(text, notes.again())


@pytest.mark.parametrize("value", [0.0, -0.0, 2.5, math.nan])
def test_a_branch_by_the_number_itself_is_noted(value: float) -> None:
    notes = Recorder()
    assert bool(notes.start(value)) is bool(value)
    assert notes.outcomes == [("v0 != 0.0", bool(value))]


LOOKS: dict[str, Callable[[Any], Any]] = {
    "math": math.sqrt, "float": float, "int": int, "round": round, "digits": lambda x: round(x, 1), "text": str,
    "repr": repr, "format": lambda x: f"{x:.3f}", "percent": lambda x: "%.2f" % x, "hash": hash, "floor": math.floor,  # noqa: UP031
    "ceil": math.ceil, "trunc": math.trunc, "divmod": lambda x: divmod(x, 2), "turned divmod": lambda x: divmod(7.0, x),
    "numpy": lambda x: np.float32(x).item(), "array": lambda x: np.asarray([x], dtype=float).tolist(),
    "whole": lambda x: x.is_integer(), "ratio": lambda x: x.as_integer_ratio(), "hex": lambda x: x.hex(),
    "copy": copy.copy, "deep copy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "key": lambda x: {x: 1}[2.75], "tensor": lambda x: torch.full((2,), x).tolist(),
    "tensor arithmetic": lambda x: torch.ones(2).add_(torch.ones(2), alpha=x).tolist(),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKS)
def test_who_asks_for_the_value_gets_it_and_is_noticed(name: str) -> None:
    notes = Recorder()
    result = LOOKS[name](notes.start(2.75))
    assert result == LOOKS[name](2.75) and type(result) is type(LOOKS[name](2.75))
    assert notes.looks


def test_it_is_told_as_a_float_and_has_what_one_has() -> None:
    number = Recorder().start(1.5)
    assert isinstance(number, float) and isinstance(number, torch.SymFloat)
    assert number.real == 1.5 and number.conjugate() == 1.5 and not hasattr(number, "size")
    with pytest.raises(AttributeError, match="'float' object has no attribute 'shape'"):
        number.shape  # noqa: B018
    with pytest.raises(TypeError):
        number + "a"
    with pytest.raises(TypeError):
        json.dumps(number)
