"""Any object in nested structures is found in order, once each, and replaced at its place."""

import types
from collections import deque, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from torch_xla._engine.pytree.instances import DataWrapper, contains, rewrite, visit

Pair = namedtuple("Pair", "first second")


class Wanted:
    """The objects to find; they may contain others."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts


@dataclass(frozen=True, slots=True)
class Slotted:
    value: Any
    name: str = ""


def is_wanted(value: Any) -> bool:
    return isinstance(value, Wanted)


def found(value: Any) -> list[Any]:
    seen: list[Any] = []
    visit(value, is_wanted, seen.append)
    return seen


def test_objects_are_met_in_order_once_each_and_not_looked_into() -> None:
    inner = Wanted()
    a, b, c, d = Wanted(inner), Wanted(), Wanted(), Wanted()
    holder = types.SimpleNamespace(x=c, y=[a])
    assert found([a, {"k": (b, holder)}, deque([d]), a, Slotted(b)]) == [a, b, c, d]


def test_code_text_and_types_are_not_looked_into() -> None:
    def function() -> None: ...

    function.held = Wanted()  # type: ignore[attr-defined]
    holder = type("Holder", (), {"held": Wanted()})
    module = types.ModuleType("m")
    module.held = Wanted()  # type: ignore[attr-defined]
    assert not found([function, holder, module, "text", b"bytes", 1.5]) and not contains([function, holder], is_wanted)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: [x], lambda x: (x,), lambda x: {x}, lambda x: frozenset([x]), lambda x: deque([x], maxlen=3),
        lambda x: Pair(1, x), lambda x: {"k": x}, lambda x: Slotted(x), lambda x: types.SimpleNamespace(k=x),
        lambda x: types.MappingProxyType({"k": x}),
    ],
    ids=["list", "tuple", "set", "frozenset", "deque", "namedtuple", "dict", "dataclass", "object", "mapping"],
)  # fmt: skip
def test_it_is_found_and_replaced_in_every_kind_of_holder(make: Any) -> None:
    old, new = Wanted(), Wanted()
    data = [make(old), make(1)]
    assert contains(data, is_wanted) and found(data) == [old]
    result = rewrite(data, is_wanted, lambda _: new)
    assert found(result) == [new] and found(data) == [old]
    assert result[1] is data[1]  # what holds none is shared
    if not isinstance(data[0], types.MappingProxyType):
        assert type(result[0]) is type(data[0])
    if isinstance(data[0], deque):
        assert result[0].maxlen == 3


def test_one_that_stands_in_two_places_is_replaced_once() -> None:
    calls: list[Any] = []
    old = Wanted()
    shared = [old]
    result = rewrite({"a": shared, "b": (shared, old)}, is_wanted, lambda each: calls.append(each) or Wanted())
    assert calls == [old]
    assert result["a"] is result["b"][0] and result["a"][0] is result["b"][1]


def test_circles_end() -> None:
    holder = types.SimpleNamespace(held=Wanted())
    holder.itself = holder
    assert contains(holder, is_wanted) and not contains(holder, lambda _: False)
    result = rewrite(holder, is_wanted, lambda _: "new")
    assert result.itself is result and result.held == "new" and is_wanted(holder.held)


def test_keys_are_met_and_replaced_and_keep_their_order() -> None:
    a, b, c = Wanted(), Wanted(), Wanted()
    data = {"first": 1, a: b, (c, "k"): 2, "last": 3}
    assert found(data) == [a, b, c]
    names = {a: "a", b: "b", c: "c"}
    assert list(rewrite(data, is_wanted, names.__getitem__).items()) == [
        ("first", 1), ("a", "b"), (("c", "k"), 2), ("last", 3),
    ]  # fmt: skip
    assert dict(rewrite(types.MappingProxyType(data), is_wanted, names.__getitem__)) == {
        "first": 1, "a": "b", ("c", "k"): 2, "last": 3,
    }  # fmt: skip
    assert list(data) == ["first", a, (c, "k"), "last"]


@pytest.mark.parametrize("make", [lambda x: (x, Wanted()), lambda x: frozenset([x]), lambda x: Pair(Wanted(), x)])
def test_circles_through_what_cannot_be_changed_stay_circles(make: Any) -> None:
    class Held:
        back: Any = None

    inner = Held()
    outer = make(inner)
    inner.back, inner.own = outer, Wanted()  # type: ignore[attr-defined]
    calls: list[Any] = []
    result = rewrite(outer, is_wanted, lambda each: calls.append(each) or Wanted())
    (held,) = [each for each in result if isinstance(each, Held)]
    assert held.back is result and held is not inner and type(result) is type(outer)
    assert len(calls) == len(set(calls)) == len(found(outer))


class Made(DataWrapper):
    """A wrapper that makes its parts when it is asked."""

    def __init__(self, *sources: Any) -> None:
        self.sources, self.asked = sources, 0

    def get_tensors(self) -> list[Any]:
        self.asked += 1
        return [Wanted(each) for each in self.sources]

    def from_tensors(self, tensors: list[Any]) -> Any:
        return tuple(tensors)


def test_a_wrapper_is_asked_once_and_put_together_again_from_what_took_its_parts_places() -> None:
    made = Made(1, 2)
    assert rewrite([made, {"k": made}], is_wanted, lambda each: each.parts[0] * 10) == [(10, 20), {"k": (10, 20)}]
    assert made.asked == 1
    assert len(found([Made(1), 2, Made(3)])) == 2
    assert rewrite([Made()], is_wanted, lambda _: None) == [()]  # also without parts
