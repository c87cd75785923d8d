"""Index by a value on the device: `x[i]` in a body, where PyTorch would read `i` on the host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...compat.names.torch import address_of, pytree
from ...compat.names.torch_dynamo import innermost

aten = torch.ops.aten


def _is_number(entry: object) -> bool:
    """Return whether an entry of an index is one number on the device."""
    return isinstance(entry, Tensor) and not entry.dim() and entry.dtype in _NUMBERS


_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8)  # of bytes each is a mask


def _dims(entry: object) -> int:
    """Return the number of dimensions of a tensor that an entry of its index uses."""
    if entry is None or isinstance(entry, bool):
        return 0
    if isinstance(entry, Tensor):
        return entry.dim() if entry.dtype in (torch.bool, torch.uint8) else 1
    if isinstance(entry, list | tuple | np.ndarray):
        found = np.asarray(entry) if not any(isinstance(each, Tensor) for each in entry) else np.zeros(1)
        return found.ndim if found.dtype == np.bool_ else 1
    return 1


def _parted(tensor: Tensor, index: object) -> tuple[list[Tensor | None], tuple[Any, ...]] | None:
    """Split an index into its numbers, each at its dimension, and the index to apply after them; `None` if it has none.

    PyTorch selects by the numbers first, wherever they occur in the index.
    """
    entries = index if isinstance(index, tuple) else (index,)
    for entry in entries:
        if isinstance(entry, slice) and any(isinstance(n, Tensor) for n in (entry.start, entry.stop, entry.step)):
            raise RuntimeError(
                "a slice in a body that the device runs by itself begins or ends where a tensor says, so its size is "
                "known to the device alone. Where the size is fixed, write `x[i + torch.arange(size, device=i.device)]`"
                " or `x.narrow(dim, i, size)`; else choose with torch.where"
            )
    if not any(map(_is_number, entries)):
        return None
    places: list[Tensor | None] = []
    for entry in entries:
        if _is_number(entry):
            places.append(entry.long())
        elif entry is ...:
            places += [None] * (tensor.dim() - sum(_dims(each) for each in entries if each is not ...))
        else:
            places += [None] * _dims(entry)
    if len(places) > tensor.dim():
        raise IndexError(f"too many indices for tensor of dimension {tensor.dim()}")
    return places, tuple(entry for entry in entries if not _is_number(entry))


def _get(tensor: Tensor, index: Any) -> Tensor:
    found = _parted(tensor, index)
    if found is None:
        return tensor[index]
    places, rest = found
    selected: Tensor = aten.index.Tensor(tensor, places)
    return selected[rest] if rest else selected


def _set(tensor: Tensor, index: Any, value: Any) -> None:
    found = _parted(tensor, index)
    if found is None:
        tensor[index] = value
        return
    places, rest = found
    selected = aten.index.Tensor(tensor, places)
    selected[rest or ...] = value
    aten.index_put_(tensor, places, selected)


def _select(tensor: Tensor, dim: int, index: Any) -> Tensor:
    if not _is_number(index):
        return tensor.select(dim, index)
    return _get(tensor, (*[slice(None)] * _counted(tensor, dim), index))


def _narrow(tensor: Tensor, dim: int, start: Any, length: int) -> Tensor:
    if not _is_number(start):
        return tensor.narrow(dim, start, length)
    if not 0 <= length <= tensor.shape[dim]:
        raise RuntimeError(f"narrow(): length must be between 0 and {tensor.shape[dim]}; got {length}")
    return tensor.index_select(dim, start + torch.arange(length, device=start.device))


def _counted(tensor: Tensor, dim: int) -> int:
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-tensor.dim()}, {tensor.dim() - 1}], but got {dim})"
        )
    return dim % tensor.dim()


# By what PyTorch calls them: each with the same arguments.
_FORMS: dict[object, Callable[..., object]] = {
    Tensor.__getitem__: _get,
    Tensor.__setitem__: _set,
    Tensor.select: _select,
    torch.select: _select,
    Tensor.narrow: _narrow,
    torch.narrow: _narrow,
}


def form_of(function: object, args: Sequence[object]) -> Callable[..., object] | None:
    """Return a replacement for a PyTorch function that does not read indices on the host; `None` if none is needed."""
    form = _FORMS.get(function)
    return form if form is not None and args and isinstance(args[0], Tensor) else None


@dataclass
class _Selection:
    """A selection by a number that only the device knows: a copy where PyTorch makes a view."""

    tensor: Tensor
    index: Any
    copy: Tensor
    writes: int  # to memory that `tensor` shows, when it was selected


class Selections:
    """Find bodies for which a copy of such a selection is not enough, because they could observe that it is no view.

    `writes` returns how often the memory of a tensor was written to.
    """

    def __init__(self, writes: Callable[[Tensor], int]) -> None:
        self._writes = writes
        self._found: dict[int, _Selection] = {}  # by the memory of the copy

    def call(self, function: Any, form: Callable[..., Any] | None, args: Any, kwargs: Any) -> object:
        """Return the result of `function`, or of its replacement."""
        if self._found:
            self._check(function, args, kwargs)
        before = sum(map(_is_number, pytree.tree_leaves(args[1:]))) if form is not None else 0
        result = (form or function)(*args, **kwargs)
        if before and isinstance(result, Tensor):
            tensor = args[0]
            selection = _Selection(tensor, args[1], result, self._writes(tensor))
            self._found[_memory(result)] = selection
        return result

    def finish(self) -> None:
        """Raise if a copy was written to and differs from its source now."""
        if any(self._writes(selection.copy) for selection in self._found.values()):
            raise RuntimeError(
                "a body that the device runs by itself writes to `x[i]`, where `i` is a tensor: there it is a copy and "
                "not a view. Write `x[i] = value`, or `x[i] += value`"
            )

    def _check(self, function: Any, args: Any, kwargs: object) -> None:
        tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if function is Tensor.__setitem__ and len(args) > 2 and isinstance(args[2], Tensor):
            # `x[i] += value` writes to what it selects, and puts it back.
            known = self._found.get(_memory(args[2]))
            if known is not None and known.copy is args[2] and known.tensor is args[0] and _same(known.index, args[1]):
                del self._found[_memory(args[2])]
        for each in tensors:
            known = self._found.get(_memory(each))
            if known is not None and self._writes(known.tensor) != known.writes:
                raise RuntimeError(
                    "a body that the device runs by itself uses `x[i]`, where `i` is a tensor, after a write to `x`: "
                    "there it is a copy and not a view. Select again after the write, or clone `x[i]` before it"
                )


def _same(one: object, other: object) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one is other or (type(one) is type(other) and not isinstance(one, Tensor) and bool(one == other))


def _memory(tensor: Tensor) -> int:
    return address_of(innermost(tensor).untyped_storage())
