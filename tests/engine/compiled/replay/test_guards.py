"""Everything that a function can see is compared with its previous state, fast, and differences are described."""

import collections
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torch_xla._engine.compiled.replay.guards import MISSING, Container, Look, Reached, bytes_of


class Thing:
    """Has attributes."""

    def __init__(self) -> None:
        self.rate = 0.5
        self.name = "a"


def function(x: int = 1) -> int:
    return x


def another(x: int = 1) -> int:
    return x + 1


def cell(value: Any) -> Any:
    def inner() -> Any:
        return value

    assert inner.__closure__
    return inner.__closure__[0]


def set_code() -> Callable[[Any], None]:
    return lambda held: setattr(held, "__code__", another.__code__)


def copy_of(function: Any) -> Any:
    return types.FunctionType(function.__code__, {}, "f", function.__defaults__)


# How to create, change and describe each kind; `True` if the change is relevant.
CASES: dict[str, tuple[Look, Callable[[], Any], Callable[[Any], Any], str]] = {
    "a value": (Look.MAP, lambda: {"a": 1}, lambda d: d.update(a=2), "it['a']: 1 before, 2 now"),
    "an entry": (Look.MAP, lambda: {"a": 1}, lambda d: d.update(b=2), "it: 1 entries before, 2 now"),
    "a key": (Look.MAP, lambda: {"a": 1}, lambda d: (d.pop("a"), d.update(b=1)), "it['b']: 'a' before, 'b' now"),
    "of an ordered one": (
        Look.MAP,
        lambda: collections.OrderedDict(a=1, b=1),
        lambda d: d.move_to_end("a"),
        "it['b']: 'a' before, 'b' now",
    ),
    "an attribute": (
        Look.ATTRIBUTES,
        lambda: Thing().__dict__,
        lambda d: d.update(rate=0.25),
        "it.rate: 0.5 before, 0.25 now",
    ),
    "an element": (Look.SEQUENCE, lambda: [1, "a"], lambda s: s.__setitem__(1, "b"), "it[1]: 'a' before, 'b' now"),
    "a variable": (Look.CELL, lambda: cell(1), lambda c: setattr(c, "cell_contents", 2), "it: 1 before, 2 now"),
    "the code": (Look.FUNCTION, lambda: copy_of(function), set_code(), "it: <code"),
    "the defaults": (
        Look.FUNCTION,
        lambda: copy_of(function),
        lambda f: setattr(f, "__defaults__", (2,)),
        "it: (1,) before, (2,) now",
    ),
    "the class": (
        Look.OBJECT,
        Thing,
        lambda o: setattr(o, "__class__", type("Other", (Thing,), {})),
        "it: <class",
    ),
    "a tensor on the CPU": (Look.HOST, lambda: torch.ones(2), lambda t: t.add_(1), "it, a tensor on the CPU"),
    "an array": (Look.ARRAY, lambda: np.ones(2), lambda a: a.fill(2), "it, an array"),
    "the memory of a tensor": (
        Look.GEOMETRY,
        lambda: torch.ones(2),
        lambda t: setattr(t, "data", torch.ones(2)),
        "it, the memory of a tensor or how it shows it",
    ),
    "the hooks of a tensor": (
        Look.HOOKS,
        lambda: torch.ones(2, requires_grad=True),
        lambda t: t.register_hook(lambda g: g),
        "it: None before, OrderedDict",
    ),
}


def settled(*containers: Container) -> Reached:
    found = Reached(containers=list(containers))
    found.accept_all()
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen_and_told(name: str) -> None:
    kind, make, change, text = CASES[name]
    held = make()
    found = settled(Container("it", held, kind))
    assert found.unchanged() and found.unchanged() and found.differences() == []
    change(held)
    if kind is not Look.GEOMETRY:  # that is compared by guards, see `replay`
        assert not found.unchanged()
    assert str(found.differences()[0]).startswith(text)
    found.accept_all()
    assert found.unchanged() and not found.differences()


def test_names_are_looked_at_whether_they_are_there_or_not() -> None:
    names: dict[str, Any] = {"a": 1, "b": 2}
    found = settled(Container("", names, Look.NAMED, ("a", "c")))
    names["b"] = 3
    assert found.unchanged()
    names["c"] = 4
    assert not found.unchanged()
    assert [str(each) for each in found.differences()] == ["c: nothing before, 4 now"]
    assert repr(MISSING) == "nothing"


def test_an_equal_number_takes_the_place_of_another() -> None:
    held = {"rate": float("1.5"), "size": (1, 1000), "nan": float("nan"), "zero": 0.0}
    found = settled(Container("it", held, Look.MAP))
    held.update(rate=float("1.5"), size=(1, int("1000")), nan=float("nan"))
    assert found.unchanged() and found.unchanged()
    held["zero"] = -0.0
    assert not found.unchanged()
    held["zero"] = 0.0
    assert found.unchanged()
    held["size"] = (1, 1000.0)
    assert not found.unchanged()


def test_a_variable_may_lose_its_value() -> None:
    held = cell(1)
    found = settled(Container("it", held, Look.CELL))
    del held.cell_contents
    assert not found.unchanged()
    found.accept_all()
    assert found.unchanged()
    held.cell_contents = 2
    assert not found.unchanged()


def test_what_was_empty_is_no_more() -> None:
    some: list[int] = []
    mapping: dict[str, int] = {}
    found = settled(Container("list", some, Look.SEQUENCE), Container("map", mapping, Look.MAP))
    assert found.unchanged()
    some.append(1)
    assert not found.unchanged()
    some.clear()
    assert found.unchanged()
    mapping["a"] = 1
    assert not found.unchanged()


def test_a_difference_can_be_looked_at_again() -> None:
    held = {"a": 1}
    found = settled(Container("it", held, Look.MAP))
    held["a"] = 2
    (difference,) = found.differences()
    held["a"] = 3
    assert difference.read() == 3
    held["b"] = 4
    (difference,) = found.differences()
    assert difference.read() == 4  # values and keys


def test_bytes_tell_what_is_shown_and_how() -> None:
    x = torch.arange(4.0)
    others = [x, x + 1, x.view(2, 2), x.view(torch.int32), x.clone().requires_grad_()]
    assert len({bytes_of(each) for each in others}) == len(others) and bytes_of(x) == bytes_of(x.clone())
    a = np.arange(4.0)
    read_only = a.copy()
    read_only.flags.writeable = False
    assert len({bytes_of(each) for each in (a, a + 1, a.reshape(2, 2), read_only)}) == 4
    z = torch.tensor([1 + 2j])
    assert bytes_of(z.conj()) == bytes_of(torch.tensor([1 - 2j])) != bytes_of(z)
