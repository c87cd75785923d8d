"""Upload host tensors as device values."""

import time

import numpy as np
import torch

from .. import dtypes, metrics
from ..dtypes import to_numpy
from ..ir.sharding import Sharding
from ..ir.tape import Value
from ..ir.value_spec import Spec, spec_of
from ..ir.view.geometry import Geometry
from ..lowering.machinery.jax_sharding import carried, to_jax
from ..metrics import Unit, events
from ..metrics.events import Direction, Transfer
from ..metrics.user_lines import line_above, user_lines
from ..runtime import buffers
from .device import Device
from .live_counters import buffers as live_buffers
from .live_counters import values as live_values

_transferring = metrics.metric("TransferToDeviceTime")
_transforming = metrics.metric("TransferToDeviceTransformTime")
_sent = metrics.metric("OutboundData", Unit.BYTES)
_to_all = metrics.counter("VirtualDeviceUsage")

# Tensors with up to this many numbers are remembered on the host: lists of indices or weights in programs.
_FEW = 64

# The limit of NumPy, through which the elements are copied.
_MOST_DIMS = 64


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """Return a CPU tensor on the memory of `array`."""
    dtype = dtypes.to_torch(array.dtype)
    if array.dtype.isbuiltin != 1:
        width = dtypes.BITS[array.dtype.itemsize]
        plain = np.ascontiguousarray(array).view({torch.uint8: np.uint8, torch.int16: np.int16}[width])
        return torch.from_numpy(plain.reshape(array.shape)).view(dtype)
    return torch.from_numpy(array)


def upload(tensor: torch.Tensor, device: Device, sharding: Sharding | None = None, minibatch: bool = False) -> Value:
    """Return a value on `device` with the contents of a CPU tensor, which may change afterwards.

    On several devices it is divided as `sharding` says: from the host straight to its parts. With `minibatch` each
    process brings its own part of the first dimension.
    """
    if tensor.dim() > _MOST_DIMS:
        raise RuntimeError(
            f"only tensors with up to {_MOST_DIMS} dims are supported on an xla device; this one has {tensor.dim()}. "
            "Merge some with `.flatten()` or `.reshape(...)` before you move it."
        )
    spec = dense_spec(tensor)
    if minibatch and len(device.target.processes) > 1:
        size = (len(device.target.processes) * spec.size[0], *spec.size[1:])
        spec = spec_of(size, Geometry.contiguous(size).stride, spec.dtype)
    if events.guarded:
        events.ask(_transfer(tensor, device, time.perf_counter(), 0.0))
    start = time.perf_counter_ns()
    host = to_numpy(tensor)
    wanted = dtypes.to_jax(dtypes.on_device(tensor.dtype))
    if host.dtype != wanted:
        host = host.astype(wanted)
    elif np.may_share_memory(host, host):
        host = buffers.owned_copy(host, device.target)
    transformed = time.perf_counter_ns()
    value = Value(spec, device, None, -1)
    placed = None if sharding is None else to_jax(sharding, device.target)
    is_part = spec.size != host.shape
    if placed is not None and not is_part:
        host = _carrying(host, placed)
    value.buffer = buffers.of_processes(host, placed) if is_part else buffers.put(host, device.target, placed)
    ended = time.perf_counter_ns()
    _transforming.add(transformed - start)
    _transferring.add(ended - start)
    _sent.add(host.nbytes)
    if device.spread is not None:
        _to_all.value += 1
    live_values.value += 1
    live_buffers.value += 1
    value.contents = host.copy() if 0 < host.size <= _FEW and host.dtype.kind in "fiub" else None
    if events.closely:
        transfer = _transfer(tensor, device, start * 1e-9, (ended - start) * 1e-9)
        value.line = transfer.frames[0]
        events.emit(transfer)
    elif events.watched:
        value.line = line_above(3)  # between this and the user are two functions of ours at least
    return value


def _carrying(host: np.ndarray, placed: object) -> np.ndarray:
    size = carried(host.shape, placed)
    ends = [(0, wanted - length) for length, wanted in zip(host.shape, size, strict=True)]
    return host if size == host.shape else np.pad(host, ends)


def _transfer(tensor: torch.Tensor, device: Device, start: float, seconds: float) -> Transfer:
    frames = user_lines(events.depth)
    return Transfer(Direction.TO_DEVICE, device.index, tensor.nbytes, frames, start, seconds, False)


def dense_spec(tensor: torch.Tensor) -> Spec:
    """Return the spec of a value with the order of memory of `tensor`, or with the plain one if that has gaps."""
    size = tuple(tensor.shape)
    if Geometry(size, tuple(tensor.stride())).is_dense():
        return spec_of(size, tuple(tensor.stride()), tensor.dtype)
    return spec_of(size, Geometry.contiguous(size).stride, tensor.dtype)
