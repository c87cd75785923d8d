"""Placeholder tensors without memory, to record a program and look at it."""

from collections.abc import Sequence

import torch

from .. import dtypes
from ..ir.tape import Value
from ..ir.value_spec import contiguous_stride, spec_of
from ..runtime.abstract_buffer import Placeholder
from .device import current_index, device_at
from .storage import value_of, wrap


def placeholder(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on this thread's device without memory."""
    size = tuple(size)
    device = device_at(current_index())
    value = Value(spec_of(size, contiguous_stride(size), dtype), device, None, -1)
    sharding = None if device.spread is None else device.spread.everywhere
    value.buffer = Placeholder(size, dtypes.to_jax(dtypes.on_device(dtype)), sharding)
    value.shared = True
    return wrap(value)


def is_placeholder(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds no memory."""
    return isinstance(value_of(tensor).buffer, Placeholder)
