"""Find tensors inside Python objects, or convert them in one batch."""

from collections.abc import Callable
from typing import TypeVar

import torch

from .instances import Wrapped, rewrite, visit

Select = Callable[[torch.Tensor], bool]
Convert = Callable[[list[torch.Tensor]], list[torch.Tensor]]
T = TypeVar("T")


def collected(data: object, select: Select, wrapped: Wrapped | None = None) -> list[torch.Tensor]:
    """Return the tensors in `data` that `select` accepts, each object once, in the order in which they are found."""
    found: list[torch.Tensor] = []
    visit(data, lambda value: isinstance(value, torch.Tensor) and select(value), found.append, wrapped)
    return found


def replaced(data: T, select: Select, convert: Convert) -> T:
    """Return `data` with each tensor that `select` accepts replaced by what `convert`, called once with all, gives.

    Containers and objects on the way to a replaced tensor are copied, everything else is shared with `data`.
    """
    wrapped = Wrapped()
    tensors = collected(data, select, wrapped)
    converted = convert(tensors) if tensors else []
    if len(converted) != len(tensors):
        raise ValueError(f"{len(tensors)} tensors were to be converted, and {len(converted)} came back")
    # `tensors` keeps every key's object alive.
    new = {id(old): tensor for old, tensor in zip(tensors, converted, strict=True)}
    result: T = rewrite(data, lambda value: id(value) in new, lambda value: new[id(value)], wrapped)
    return result


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
        """Return `inputs` with the accepted tensors converted; its containers stay as they are and new ones come
        back.
        """
        return replaced(inputs, self._select, self._convert)
