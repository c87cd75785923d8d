"""Any object in nested structures: found in order, once each, and replaced where it stands."""

import types
from collections import deque, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from torch_xla._engine.pytree.instances import contains, rewrite, visit

Pair = namedtuple("Pair", "first second")


class Wanted:
    """What is looked for; may hold others."""

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
