"""Tensors inside Python objects: find them, replace them, leave everything else as it is."""

import copy
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

Select = Callable[[torch.Tensor], bool]
Convert = Callable[[list[torch.Tensor]], list[torch.Tensor]]
T = TypeVar("T")

# Not looked into. Any other object is, if it has a `__dict__`: batches come as objects of the user's classes too.
_OPAQUE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    str,
    bytes,
    int,
    float,
)


def collected(data: Any, select: Select) -> list[torch.Tensor]:
    """The tensors in `data` that `select` accepts, each object once, in the order in which they are found."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    stack = [data]
    while stack:
        each = stack.pop()
        if isinstance(each, _OPAQUE) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            if select(each):
                found.append(each)
        else:
            stack.extend(reversed(_parts(each)))
    return found


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = list(value)
    else:
        parts = []
    return [*parts, *getattr(value, "__dict__", {}).values()]


def replaced(data: T, select: Select, convert: Convert) -> T:
    """`data` with each tensor that `select` accepts replaced by what `convert`, called once with all, gives for it.

    Containers and objects on the way to a replaced tensor are copied, everything else is shared with `data`.
    """
    tensors = collected(data, select)
    if not tensors:
        return data
    converted = convert(tensors)
    if len(converted) != len(tensors):
        raise ValueError(f"{len(tensors)} tensors were to be converted, and {len(converted)} came back")
    # `tensors` keeps every key's object alive.
    result: T = _Rebuild({id(old): new for old, new in zip(tensors, converted, strict=True)}).of(data)
    return result


class _Rebuild:
    """Copies of the containers that hold something replaced; of each object at most one copy, also in cycles."""

    def __init__(self, replacements: dict[int, torch.Tensor]) -> None:
        self._results: dict[int, Any] = dict(replacements)
        self._affected: dict[int, bool] = dict.fromkeys(replacements, True)

    def of(self, value: Any) -> Any:
        if id(value) in self._results:
            return self._results[id(value)]
        if isinstance(value, _OPAQUE) or isinstance(value, torch.Tensor) or not self._holds_replaced(value):
            return value
        if isinstance(value, tuple):
            return self._store(value, _tuple_of(type(value), [self.of(part) for part in value]))
        if isinstance(value, (set, frozenset)):
            return self._store(value, type(value)(self.of(part) for part in value))
        result = self._store(value, copy.copy(value))
        attributes = {name: self.of(part) for name, part in getattr(value, "__dict__", {}).items()}
        if isinstance(value, dict):
            for key, part in value.items():
                result[key] = self.of(part)
        elif isinstance(value, list):
            result[:] = [self.of(part) for part in value]
        if attributes:
            result.__dict__.update(attributes)
        return result

    def _store(self, value: Any, result: Any) -> Any:
        self._results[id(value)] = result
        return result

    def _holds_replaced(self, value: Any) -> bool:
        known = self._affected.get(id(value))
        if known is None:
            known = bool(collected(value, lambda tensor: id(tensor) in self._results))
            self._affected[id(value)] = known
        return known


def _tuple_of(kind: Any, parts: list[Any]) -> Any:
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


class ToXlaTensorArena:
    """Converts in one batch the tensors, anywhere in a nested structure, that a test accepts.

    >>> import torch
    >>> doubled = ToXlaTensorArena(lambda tensors: [t * 2 for t in tensors], lambda t: t.is_floating_point())
    >>> doubled.transform({"a": [torch.tensor(1.5)], "b": ("text", torch.tensor(1))})
    {'a': [tensor(3.)], 'b': ('text', tensor(1))}
    """

    def __init__(self, convert_fn: Convert, select_fn: Select) -> None:
        self._convert = convert_fn
        self._select = select_fn

    def transform(self, inputs: T) -> T:
        """`inputs` with the accepted tensors converted; its containers stay as they are and new ones come back."""
        return replaced(inputs, self._select, self._convert)
