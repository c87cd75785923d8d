"""Calls that append to a capacity-padded sequence, or read one: recorded so that no plan holds its length."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..tensor import padded_rows
from ..tensor.storage import shows_all, value_of, wrap
from .recording_kernel import Kernel, recorder, runs_at_once

_cat = recorder("aten::cat")
_pad = recorder("aten::constant_pad_nd")


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """`torch.cat`. One element behind each row of integers, again and again, needs no program of its own each time."""
    if len(tensors) == 2 and (longer := _appended(tensors[0], tensors[1], dim)) is not None:
        return longer
    return _cat(tensors, dim)  # type: ignore[no-any-return]


def _appended(first: Tensor, last: Tensor, dim: int) -> Tensor | None:
    size = first.shape
    if first.is_floating_point() or not size or dim not in (-1, len(size) - 1) or first.dtype is not last.dtype:
        return None
    if last.shape != (*size[:-1], 1) or 0 in size or last.device != first.device or first.device.type != "xla":
        return None
    value = value_of(first)
    whole = shows_all(first, value.spec) and value.spec.is_contiguous
    if not whole or value.device.spread is not None or runs_at_once():
        return None
    element = value_of(last.contiguous())
    if not shows_all(last, element.spec):
        element = value_of(last.clone())
    made = padded_rows.appended(value, element)
    return None if made is None else wrap(made)


def constant_pad_nd(self: Tensor, pad: Sequence[int], value: Any = 0) -> Tensor:
    """`torch.constant_pad_nd`, which `nn.functional.pad` calls."""
    if self.device.type == "xla" and len(pad) == 2 and pad[0] == 0 and pad[1] > 0 and self.shape:
        grown = value_of(self)
        if isinstance(grown, padded_rows.Grown) and shows_all(self, grown.spec) and _can_be(value, self.dtype):
            return wrap(padded_rows.padded(grown, grown.length + pad[1], value))
    return _pad(self, pad, value)  # type: ignore[no-any-return]


def _can_be(value: Any, dtype: torch.dtype) -> bool:
    """Whether a number can be one of an integer dtype. What cannot is refused, which is not done here."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return dtype is torch.bool or torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max


def _looking_at_no_element(name: str) -> Kernel:
    """The kernel of an operator that asks its operand for no more than dtype and device."""
    make = recorder(f"aten::{name}")

    def kernel(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        value = value_of(self)
        return make(wrap(value.room) if isinstance(value, padded_rows.Grown) else self, *args, **kwargs)

    return kernel


KERNELS = {
    "cat": cat,
    "constant_pad_nd": constant_pad_nd,
    **{name: _looking_at_no_element(name) for name in ("new_full", "new_ones", "new_zeros")},
}
