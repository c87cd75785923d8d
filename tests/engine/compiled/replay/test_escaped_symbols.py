"""Symbols of a trace that the program keeps become the floats that they represent."""

import gc
import weakref
from collections import deque, namedtuple
from typing import Any

import pytest

from torch_xla._engine.compiled.replay.escaped_symbols import put_floats_back
from torch_xla._engine.compiled.replay.symbolic_floats import HostNumber


class Notes:
    """A trace that is over."""

    def computed(self, value: float, text: str) -> Any:
        return value

    def is_so(self, text: str, outcome: bool) -> bool:
        return outcome

    def looked_at(self, number: HostNumber) -> None:
        pass


class Slotted:
    __slots__ = ("empty", "kept")


class Plain:
    kept: Any


Pair = namedtuple("Pair", "number name")


def in_closure(value: Any) -> Any:
    return lambda: value


@pytest.mark.parametrize("frozen", [False, True])
def test_they_are_put_back_wherever_they_are_held(frozen: bool) -> None:
    number = HostNumber(Notes(), 1.5, "v0")
    slotted, plain, read = Slotted(), Plain(), in_closure(number)
    slotted.kept = plain.kept = number
    held: dict[str, Any] = {
        "itself": number, "list": [0, number], "deque": deque([number]), "set": {number, 2.0},
        "tuple": (number, "a"), "pair": Pair(number, "b"), "in a list": [(number,)], "error": ValueError("c", number),
    }  # fmt: skip
    if frozen:
        gc.freeze()  # as a program may do, and as the names of its modules are
    assert put_floats_back([weakref.ref(number)])
    assert held.pop("error").args == ("c", 1.5)
    assert held == {
        "itself": 1.5, "list": [0, 1.5], "deque": deque([1.5]), "set": {1.5, 2.0}, "tuple": (1.5, "a"),
        "pair": Pair(1.5, "b"), "in a list": [(1.5,)],
    }  # fmt: skip
    found = [held["itself"], held["list"][1], held["deque"][0], held["tuple"][0], held["pair"].number, *held["set"]]
    assert {type(each) for each in [*found, held["in a list"][0][0], slotted.kept, plain.kept, read()]} == {float}
    assert type(held["pair"]) is Pair and not hasattr(slotted, "empty")


@pytest.mark.parametrize("value", [0.0, -0.0, float("inf")])
def test_the_float_is_the_same(value: float) -> None:
    held = [HostNumber(Notes(), value, "v0")]
    put_floats_back([weakref.ref(number) for number in held])
    assert repr(held[0]) == repr(value) and type(held[0]) is float


def test_objects_stay_frozen_where_no_frozen_one_holds_a_number() -> None:
    gc.freeze()
    held = [HostNumber(Notes(), 1.5, "v0")]
    made = weakref.ref(held[0])
    assert put_floats_back([made]) and not put_floats_back([made])
    assert type(held[0]) is float and gc.get_freeze_count()


def test_nothing_is_searched_where_no_number_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [weakref.ref(HostNumber(Notes(), 1.5, "v0"))]
    monkeypatch.setattr(gc, "get_referrers", None)
    assert not put_floats_back(made) and not put_floats_back([])
