"""Calls that append to a capacity-padded sequence, or read one: recorded so that no plan holds its length."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..tensor import spare_capacity
from ..tensor.storage import shows_all, value_of, wrap
from .recording_kernel import Kernel, recorder, runs_at_once

_cat = recorder("aten::cat")
_pad = recorder("aten::constant_pad_nd")


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Implement `torch.cat`. One element behind each row of integers, again and again, needs no program of its own each
    time.
    """
    if len(tensors) == 2 and (longer := _appended(tensors[0], tensors[1], dim)) is not None:
        return longer
    return _cat(tensors, dim)  # type: ignore[no-any-return]


def _appended(first: Tensor, last: Tensor, dim: int) -> Tensor | None:
    size = first.shape
    if not size or first.dtype is not last.dtype:
        return None
    dim = dim - len(size) if dim >= 0 else dim
    if dim != (-2 if first.is_floating_point() else -1) or len(size) < -dim:
        return None
    wanted = (*size[:-1], 1) if dim == -1 else (*size[:-2], 1, size[-1])
    if last.shape != wanted or 0 in size or last.device != first.device or first.device.type != "xla":
        return None
    value = value_of(first)
    whole = shows_all(first, value.spec) and value.spec.is_contiguous
    if not whole or value.device.spread is not None or runs_at_once():
        return None
    element = value_of(last.contiguous())
    if not shows_all(last, element.spec):
        element = value_of(last.clone())
    made = spare_capacity.appended(value, element, dim)
    return None if made is None else wrap(made)


def attended(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return padded memory to attend to instead of growing keys and values, and the mask of the places that count.

    Nothing for others, and where a gradient may be asked for.
    """
    if torch.is_grad_enabled() or any(each.device.type != "xla" for each in (query, key, value)):
        return None
    keys, values = value_of(key), value_of(value)
    if not (isinstance(keys, spare_capacity.Grown) and isinstance(values, spare_capacity.Grown)):
        return None
    if keys.dim != -2 or values.dim != -2 or keys.length != values.length or key.dim() != 4 or value.dim() != 4:
        return None
    if keys.room.spec.size[-2] != values.room.spec.size[-2]:
        return None
    if not (shows_all(key, keys.spec) and shows_all(value, values.spec)):
        return None
    return wrap(keys.room), wrap(values.room), wrap(spare_capacity.is_valid(keys))


def constant_pad_nd(self: Tensor, pad: Sequence[int], value: object = 0) -> Tensor:
    """Implement `torch.constant_pad_nd`, which `nn.functional.pad` calls."""
    if self.device.type == "xla" and len(pad) == 2 and pad[0] == 0 and pad[1] > 0 and self.shape:
        grown = value_of(self)
        if (
            isinstance(grown, spare_capacity.Grown)
            and grown.dim == -1
            and shows_all(self, grown.spec)
            and _can_be(value, self.dtype)
        ):
            return wrap(spare_capacity.padded(grown, grown.length + pad[1], value))
    return _pad(self, pad, value)  # type: ignore[no-any-return]


def _can_be(value: object, dtype: torch.dtype) -> bool:
    """Return whether an integer dtype can hold a number. The caller refuses other numbers."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return dtype is torch.bool or torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max


def _looking_at_no_element(name: str) -> Kernel:
    """Return the kernel of an operator that asks its operand for no more than dtype and device."""
    make = recorder(f"aten::{name}")

    def kernel(self: Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        value = value_of(self)
        return make(wrap(value.room) if isinstance(value, spare_capacity.Grown) else self, *args, **kwargs)

    return kernel


def keeping_room(record: Kernel) -> Kernel:
    """Return the kernel of an operator with (self, dim, index): its result grows as `self` does along another `dim`."""

    def kernel(self: Tensor, dim: int, index: Tensor) -> torch.Tensor:
        grown = value_of(self) if self.device.type == "xla" else None
        if not isinstance(grown, spare_capacity.Grown) or not shows_all(self, grown.spec):
            return record(self, dim, index)
        if not -self.dim() <= dim < self.dim() or dim % self.dim() == self.dim() + grown.dim:
            return record(self, dim, index)
        return wrap(spare_capacity.Grown(value_of(record(wrap(grown.room), dim, index)), grown.length, grown.dim))

    return kernel


KERNELS = {
    "cat": cat,
    "constant_pad_nd": constant_pad_nd,
    **{name: _looking_at_no_element(name) for name in ("new_full", "new_ones", "new_zeros")},
}
