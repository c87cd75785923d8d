"""`_foreach_` operators that write to a tensor which another element of the call reads or writes.

One operation reads everything before it writes anything. PyTorch goes from element to element, so an element sees what
was written for those before it: `torch._foreach_add_([a, b], [b, a])`.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..compat.names.torch import address_of
from .op_schema import Operator

# The memory of an element: its storage, the first byte, and the one behind the last.
_Extent = tuple[int, int, int]


def are_entangled(args: tuple[Any, ...], operands: Sequence[object]) -> bool:
    """Return whether an element of a call that writes to the tensors of `args[0]` may share memory with another one."""
    count = len(args[0])
    if count < 2:
        return False
    values = [each[0] if each.__class__ is tuple else each for each in operands]
    written = set(values[:count])
    # Almost every call: no value is written twice, and what is read is another or that of the same element.
    if len(written) == count:
        read = values[count:]
        if written.isdisjoint(read):
            return False
        are_lists = len(read) % count == 0  # else a tensor that every element reads is among them
        if are_lists and all(each not in written or each is values[nth % count] for nth, each in enumerate(read)):
            return False
    return _share_memory(args)


def _share_memory(args: tuple[Any, ...]) -> bool:
    written = sorted((_extent(tensor), index) for index, tensor in enumerate(args[0]))
    neighbours = zip(written, written[1:], strict=False)
    if any(_overlap(one, other) and _meet(args[0][i], args[0][k]) for (one, i), (other, k) in neighbours):
        return True
    for index, read in _read(args[1:]):
        extent = _extent(read)
        first = bisect_left(written, (extent, -1))
        nearby = written[max(first - 1, 0) :]
        for other, place in nearby:
            if other[:2] >= (extent[0], extent[2]):
                break
            if place != index and _overlap(extent, other) and _meet(read, args[0][place]):
                return True
    return False


def _read(arguments: tuple[object, ...]) -> Iterator[tuple[int, Tensor]]:
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield -1, argument  # every element reads it
        elif isinstance(argument, (list, tuple)):
            for index, element in enumerate(argument):
                if isinstance(element, Tensor):
                    yield index, element


def _extent(tensor: Tensor) -> _Extent:
    width = tensor.element_size()
    last = sum((int(size) - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return (
        address_of(tensor.untyped_storage()),
        start * width,
        (start + last + 1) * width if tensor.numel() else start * width,
    )


def _overlap(one: _Extent, other: _Extent) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def _meet(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors with interleaved memory have an element in common: columns of a matrix have not."""
    if one.element_size() != other.element_size():
        return True
    return not set(_places(one).tolist()).isdisjoint(_places(other).tolist())


def _places(tensor: Tensor) -> np.ndarray:
    places = np.array(int(tensor.storage_offset()))
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = np.add.outer(places, np.arange(int(size)) * int(step))
    return places.ravel()


def one_by_one(operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, object]) -> object:
    """Call the operator for one element after the other."""
    for index in range(len(args[0])):
        given = [[each[index]] if isinstance(each, (list, tuple)) else each for each in args]
        named = {name: [each[index]] if isinstance(each, (list, tuple)) else each for name, each in kwargs.items()}
        operator.overload(*given, **named)
    return args[0] if operator.returns else None
