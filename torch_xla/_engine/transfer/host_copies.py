"""Copies between host and device: `.to("xla")`, `.cpu()`, `.item()`."""

import time

import jax
import numpy as np
import torch

from .. import dtypes, metrics
from ..ir.tape import Value
from ..ir.view.geometry import Geometry
from ..lowering.machinery.jax_sharding import refuse_manual
from ..metrics import Unit, events, samples
from ..metrics.events import Direction, Transfer
from ..metrics.user_lines import user_lines
from ..processes import heartbeats
from ..runtime import buffers
from ..step import constant_predicates, in_flight, run_failures, waits_among_processes
from ..step.sync import compute
from ..tensor.device import LOCK
from ..tensor.storage import hold, shows_all, snapshot, value_of
from ..tensor.upload import dense_spec, from_numpy
from ..tensor.upload import upload as upload
from ..tensor.views import refuse_beyond, view_of

_transferring = metrics.metric("TransferFromDeviceTime")
_received = metrics.metric("InboundData", Unit.BYTES)
_scalars_read = metrics.counter("aten::_local_scalar_dense")

# An enumeration looks its members up each time.
_FROM_DEVICE = Direction.FROM_DEVICE


def upload_into(target: torch.Tensor, source: torch.Tensor) -> None:
    """Overwrite a device tensor with a CPU tensor, converted to its dtype and broadcast to its shape."""
    base = value_of(target)
    if source.dtype != target.dtype:
        source = source.to(target.dtype)
    source = source.expand(target.shape)
    value = upload(source, base.device)
    if base.device.spread is not None and base.buffer is not None and shows_all(target, base.spec):
        value.buffer = buffers.place(value.buffer, base.buffer.sharding, base.buffer.shape)
    if shows_all(target, base.spec):
        value.spec = base.spec
    hold(target, value)


def to_cpu(tensor: torch.Tensor, callers: int = 1) -> torch.Tensor:
    """Copy a device tensor to the CPU, with its strides if they are dense. Waits for the device.

    `callers` is the number of frames on the stack that belong to this package, at least.
    """
    result = from_numpy(np.array(_elements(tensor, value_of(tensor), callers + 1), order="C"))
    if tensor.dtype is torch.complex32:
        result = result.to(torch.complex32)
    stride = dense_spec(tensor).stride
    if result.stride() == stride:
        return result
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(result)


def _elements(tensor: torch.Tensor, value: Value, callers: int) -> np.ndarray:
    """Return the elements of a device tensor, whose storage holds `value`, read-only."""
    if shows_all(tensor, value.spec):
        return fetch(value, callers)
    if value.buffer is None or not _cheap_on_host(tensor, value):
        return fetch(snapshot(tensor), callers)
    return _shown_on_host(tensor, value, fetch(value, callers))


def fetch(value: Value, callers: int = 0) -> np.ndarray:
    """Return the contents of a value, read-only. Waits for the device. All `callers` but one are functions of ours."""
    forced = value.buffer is None
    if events.guarded:
        size = value.spec.numel * value.spec.dtype.itemsize
        frames = user_lines(events.depth)
        events.ask(Transfer(_FROM_DEVICE, value.device.index, size, frames, 0.0, 0.0, forced))
    begins = time.perf_counter()
    if forced:
        compute((value,), of_transfer=True)
    with LOCK:  # no program that another thread is starting may take this memory
        buffer = value.buffer
    start = time.perf_counter()
    try:
        if heartbeats.current is not None:
            waits_among_processes.until_ready((buffer,))
        # JAX keeps what it has copied to the host, which would not show what others write to memory that they share.
        is_seen = not value.shared or value.device.target.is_host
        array = buffers.fetch(buffer) if is_seen else buffers.fetch(buffers.copied(buffer))
    except jax.errors.JaxRuntimeError as error:
        if buffer.is_deleted():
            raise buffers.deleted_error(buffer) from error
        raise run_failures.failure(error, "an earlier step", "") from error
    if in_flight.reporting:
        in_flight.raise_failed_assertions(value.device.target.device)
    if array.ndim != len(value.spec.size):
        refuse_manual(value.spec.size)
    if array.shape != value.spec.size:  # made longer, so that its parts are equal
        array = array[tuple(map(slice, value.spec.size))]
    ended = time.perf_counter()
    waited = int(1e9 * (ended - start))
    samples.add_each(((_transferring, waited), (_received, array.nbytes)))
    value.device.tape.started += waited  # waiting is not recording
    if events.watched:
        frames = user_lines(events.depth, above=2 + callers)
        what = _FROM_DEVICE, value.device.index, array.nbytes, frames, start, ended - start, forced, start - begins
        events.emit(events.record(Transfer, what))
    wanted = dtypes.TO_JAX[value.spec.dtype]
    return array if array.dtype == wanted else array.astype(wanted)


def _cheap_on_host(tensor: torch.Tensor, value: Value) -> bool:
    if torch.complex32 in (tensor.dtype, value.spec.dtype) and tensor.dtype is not value.spec.dtype:
        return False  # the stored bytes are not those of the view
    # Cutting a view out on the host saves a compile, if the bytes copied for nothing are few or cost nothing.
    if value.device.target.is_host:
        return True
    return tensor.numel() * 4 >= value.spec.numel


def _shown_on_host(tensor: torch.Tensor, value: Value, array: np.ndarray) -> np.ndarray:
    """Return the elements of a view of a storage's contents, read in their memory order without a copy."""
    view, order = view_of(tensor), Geometry(value.spec.size, value.spec.stride).memory_order()
    geometry, flat = view.geometry, array.transpose(order).reshape(-1)
    refuse_beyond(value.spec, geometry, view.dtype)  # NumPy would read what follows in memory
    if view.dtype is not value.spec.dtype:
        wanted = dtypes.to_jax(view.dtype)
        flat = flat.view(np.uint8)[: flat.nbytes // wanted.itemsize * wanted.itemsize].view(wanted)
    steps = [step * flat.itemsize for step in geometry.stride]
    # NumPy reads the name of a dtype again here, and `<f1`, that of a float8, is none to it.
    bits = flat if flat.dtype.isbuiltin == 1 else flat.view(f"u{flat.itemsize}")
    shown = np.lib.stride_tricks.as_strided(bits[geometry.offset :], geometry.size, steps).view(flat.dtype)
    shown = shown.conj() if view.conj else shown
    return -shown if view.neg else shown


def item(tensor: torch.Tensor, reads: metrics.Counter = _scalars_read, callers: int = 0) -> complex:
    """Return the Python number in a one-element tensor, counted among the `reads`: the kernel of
    `aten::_local_scalar_dense`.

    Waits for the device, except for a boolean that follows from the program alone. `callers` are functions of ours.
    """
    value = value_of(tensor)
    if value.buffer is None and constant_predicates.is_candidate(tensor, value):
        known = constant_predicates.known(value)
        if known is not None:
            return known
    reads.value += 1
    array = fetch(value, callers) if shows_all(tensor, value.spec) else _elements(tensor, value, callers + 1)
    if array.size != 1:  # as the CPU's kernel, which only `item` above it holds to one element
        if not array.size:
            raise RuntimeError("_local_scalar_dense: Empty tensor not supported")
        array = array.reshape(-1)[0]
    # NumPy knows nothing of the others as Python numbers.
    return array.item() if array.dtype.isbuiltin == 1 else from_numpy(np.array(array)).item()
