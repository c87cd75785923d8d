"""Visit or replace objects of any kind inside nested structures."""

import copy
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import is_dataclass
from typing import Any

import torch

Select = Callable[[Any], bool]

# Not looked into: what holds nothing, and what is part of the program rather than of its data.
_OPAQUE = (
    str, bytes, bytearray, int, float, complex, torch.Tensor,
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType,
)  # fmt: skip


def visit(value: Any, select: Select, fn: Callable[[Any], object]) -> None:
    """Calls `fn` once with each object in `value` that `select` accepts, in order. Those are not looked into."""
    seen: dict[int, Any] = {}
    stack = [value]
    while stack:
        each = stack.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each  # alive, so that its id is not given to another object meanwhile
        if select(each):
            fn(each)
        else:
            stack.extend(reversed(list(_parts(each))))


def contains(value: Any, select: Select) -> bool:
    """Whether `select` accepts `value` or something in it."""
    seen: dict[int, Any] = {}
    stack = [value]
    while stack:
        each = stack.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if select(each):
            return True
        stack.extend(_parts(each))
    return False


def rewrite(value: Any, select: Select, fn: Callable[[Any], Any]) -> Any:
    """Return `value` with each object that `select` accepts replaced by `fn` of it.

    Containers of such objects are copied, everything else is shared with `value`. An object that occurs several times
    is replaced once, and the result is used in all places.
    """
    return _Rewriting(select, fn).of(value)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, _OPAQUE):
        return ()
    if isinstance(value, Mapping):
        held: list[Any] = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        held = list(value)
    else:
        held = []
    return [*held, *_attributes(value).values()]


def _attributes(value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        # Its fields may be slots.
        names = [name for name in value.__dataclass_fields__ if hasattr(value, name)]
        return {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in names}}
    return getattr(value, "__dict__", {})


class _Rewriting:
    def __init__(self, select: Select, fn: Callable[[Any], Any]) -> None:
        self._select = select
        self._fn = fn
        self._results: dict[int, tuple[Any, Any]] = {}  # id → the object, kept alive, and what takes its place

    def of(self, value: Any) -> Any:
        known = self._results.get(id(value))
        if known is not None:
            return known[1]
        if self._select(value):
            return self._found(value, self._fn(value))
        if not contains(value, self._select):
            return self._found(value, value)
        if isinstance(value, tuple):
            parts = [self.of(part) for part in value]
            make = getattr(type(value), "_make", type(value))  # a named tuple's constructor takes its fields one by one
            return self._found(value, make(parts))
        if isinstance(value, set | frozenset):
            return self._found(value, type(value)(self.of(part) for part in value))
        if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
            return self._found(value, {key: self.of(part) for key, part in value.items()})
        return self._refill(value)

    def _found(self, value: Any, result: Any) -> Any:
        self._results[id(value)] = value, result
        return result

    def _refill(self, value: Any) -> Any:
        # Known before its parts are: they may refer back to it.
        result = self._found(value, copy.copy(value))
        if isinstance(value, MutableMapping):
            for key, part in list(value.items()):
                result[key] = self.of(part)
        elif isinstance(value, list | deque):
            for index, part in enumerate(value):
                result[index] = self.of(part)
        for name, part in _attributes(value).items():
            replacement = self.of(part)
            if replacement is not part:
                # A frozen dataclass refuses `setattr`, which guards it against others, not against its own copy.
                object.__setattr__(result, name, replacement)
        return result
