"""Visit or replace objects of any kind inside nested structures."""

import copy
import types
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch

Select = Callable[[Any], bool]

# Not looked into: what holds nothing, and what is part of the program rather than of its data.
_OPAQUE = (
    str, bytes, bytearray, int, float, complex, torch.Tensor,
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType,
)  # fmt: skip


class DataWrapper(ABC):
    """An object that names its tensors, and is put together again from others in their places."""

    @abstractmethod
    def get_tensors(self) -> list[object]:
        """Return the tensors, such as those to upload."""

    @abstractmethod
    def from_tensors(self, tensors: Sequence[object]) -> object:
        """Return what takes the place of this object, made of other tensors in the same order."""


class Wrapped:
    """The tensors of each `DataWrapper` that was met: one that makes them when it is asked is asked once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[DataWrapper, list[Any]]] = {}  # by id; the wrapper is kept alive

    def of(self, wrapper: DataWrapper) -> list[Any]:
        """Return the tensors of `wrapper`."""
        known = self._known.get(id(wrapper))
        if known is None:
            known = self._known[id(wrapper)] = wrapper, wrapper.get_tensors()
        return known[1]


def visit(value: object, select: Select, fn: Callable[[Any], object], wrapped: Wrapped | None = None) -> None:
    """Call `fn` once with each object in `value` that `select` accepts, in order. Those are not looked into."""
    for found in _found(value, select, wrapped or Wrapped()):
        fn(found)


def contains(value: object, select: Select, wrapped: Wrapped | None = None) -> bool:
    """Return whether `select` accepts `value` or something in it."""
    return any(True for _ in _found(value, select, wrapped or Wrapped()))


def _found(value: object, select: Select, wrapped: Wrapped) -> Iterator[Any]:
    """Yield each object in `value` that `select` accepts, once, in order."""
    seen: dict[int, Any] = {}
    stack = [value]
    while stack:
        each = stack.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each  # alive, so that its id is not given to another object meanwhile
        if select(each):
            yield each
        else:
            stack.extend(reversed(list(_parts(each, wrapped))))


def rewrite(value: object, select: Select, fn: Callable[[Any], Any], wrapped: Wrapped | None = None) -> Any:
    """Return `value` with each object that `select` accepts replaced by what `fn` gives for it.

    What holds such an object is copied, everything else is shared with `value`. An object in several places is replaced
    once, and the result takes all these places, also where a structure contains itself. A `DataWrapper` is always put
    together again.
    """
    return _Rewriting(select, fn, wrapped or Wrapped()).of(value)


def _parts(value: object, wrapped: Wrapped) -> Iterable[object]:
    if isinstance(value, _OPAQUE):
        return ()
    if isinstance(value, DataWrapper):
        return wrapped.of(value)
    if isinstance(value, Mapping):
        held: list[Any] = [part for item in value.items() for part in item]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        held = list(value)
    else:
        held = []
    return [*held, *_attributes(value).values()]


def _attributes(value: object) -> dict[str, Any]:
    if is_dataclass(value):
        # Its fields may be slots.
        names = [name for name in value.__dataclass_fields__ if hasattr(value, name)]
        return {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in names}}
    return getattr(value, "__dict__", {})


def _maker(value: object) -> Callable[[list[Any]], Any] | None:
    """Return what makes such a value of other parts; None for a value that is copied and changed."""
    if isinstance(value, DataWrapper):
        return value.from_tensors
    if isinstance(value, tuple):
        return getattr(type(value), "_make", type(value))  # a named tuple's constructor takes its fields one by one
    if isinstance(value, set | frozenset):
        return type(value)
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        return dict
    return None


class _Rewriting:
    def __init__(self, select: Select, fn: Callable[[Any], Any], wrapped: Wrapped) -> None:
        self._wrapped = wrapped
        self._select = select
        self._fn = fn
        self._results: dict[int, tuple[object, object]] = {}  # id → the object, kept alive, and what takes its place

    def of(self, value: object) -> Any:
        known = self._results.get(id(value))
        if known is not None:
            return known[1]
        if self._select(value):
            return self._found(value, self._fn(value))
        if not contains(value, self._is_replaced, self._wrapped):
            return self._found(value, value)
        make = _maker(value)
        if make is None:
            return self._refill(value)
        result = make([self.of(part) for part in self._held(value)])
        # A part that refers back to `value` has made its replacement meanwhile.
        known = self._results.get(id(value))
        return self._found(value, result) if known is None else known[1]

    def _is_replaced(self, value: object) -> bool:
        return isinstance(value, DataWrapper) or self._select(value)

    def _held(self, value: Any) -> Iterable[Any]:
        if isinstance(value, DataWrapper):
            return self._wrapped.of(value)
        return value.items() if isinstance(value, Mapping) else value

    def _found(self, value: object, result: object) -> Any:
        self._results[id(value)] = value, result
        return result

    def _refill(self, value: object) -> Any:
        # Known before its parts are: they may refer back to it.
        result = self._found(value, copy.copy(value))
        if isinstance(value, MutableMapping):
            items = [(key, self.of(key), self.of(part)) for key, part in list(value.items())]
            if any(new is not key for key, new, _ in items):
                for key, _, _ in items:
                    del result[key]
            for _, new, part in items:
                result[new] = part
        elif isinstance(value, list | deque):
            for index, part in enumerate(value):
                result[index] = self.of(part)
        for name, part in _attributes(value).items():
            replacement = self.of(part)
            if replacement is not part:
                # A frozen dataclass refuses `setattr`, which guards it against others, not against its own copy.
                object.__setattr__(result, name, replacement)
        return result
