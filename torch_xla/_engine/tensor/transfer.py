"""Between host tensors and device values: `.to("xla")`, `.cpu()`, `.item()`."""

from typing import Any

import jax
import numpy as np
import torch

from .. import dtypes, metrics
from ..client import buffers
from ..execute import executor
from ..graph.spec import Spec, spec_of
from ..graph.tape import Value
from ..metrics import Unit
from ..view.geometry import Geometry
from .device import Device
from .storage import hold, shows_all, snapshot, value_of, view_of
from .sync import materialise

# NumPy has no such dtypes: their bits travel as integers.
_BITS = {1: torch.uint8, 2: torch.int16}

# Up to so many integers are remembered on the host: what a program writes as a list of indices.
_FEW = 64


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a CPU tensor as a NumPy array of the matching dtype; shared where PyTorch can."""
    dtype = dtypes.to_jax(tensor.dtype)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if dtype.isbuiltin != 1:
        tensor = tensor.contiguous()
        return tensor.view(_BITS[tensor.element_size()]).numpy().view(dtype)
    return tensor.numpy()


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """A CPU tensor on the memory of `array`."""
    dtype = dtypes.to_torch(array.dtype)
    if array.dtype.isbuiltin != 1:
        width = _BITS[array.dtype.itemsize]
        plain = np.ascontiguousarray(array).view({torch.uint8: np.uint8, torch.int16: np.int16}[width])
        return torch.from_numpy(plain.reshape(array.shape)).view(dtype)
    return torch.from_numpy(array)


def upload(tensor: torch.Tensor, device: Device) -> Value:
    """A value on `device` with the contents of a CPU tensor, which may change afterwards."""
    spec = _dense_spec(tensor)
    with metrics.timed("TransferToDeviceTime"):
        host = to_numpy(tensor)
        wanted = dtypes.to_jax(dtypes.on_device(tensor.dtype))
        if host.dtype != wanted:
            host = host.astype(wanted)
        elif np.may_share_memory(host, host):
            host = buffers.owned_copy(host, device.jax_device)
        value = Value(spec, device, None, -1)
        value.buffer = buffers.put(host, device.jax_device)
    if 0 < host.size <= _FEW and host.dtype.kind in "iu":
        value.contents = host.copy()
    metrics.metric("OutboundData", Unit.BYTES).add(host.nbytes)
    return value


def _dense_spec(tensor: torch.Tensor) -> Spec:
    size = tuple(tensor.shape)
    if Geometry(size, tuple(tensor.stride())).is_dense():
        return spec_of(size, tuple(tensor.stride()), tensor.dtype)
    return spec_of(size, Geometry.contiguous(size).stride, tensor.dtype)


def upload_into(target: torch.Tensor, source: torch.Tensor) -> None:
    """Overwrites a device tensor with a CPU tensor, converted to its dtype and broadcast to its shape."""
    base = value_of(target)
    if source.dtype != target.dtype:
        source = source.to(target.dtype)
    source = source.expand(target.shape)
    value = upload(source, base.device)
    if shows_all(target, base.spec):
        value.spec = base.spec
    hold(target, value)


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU copy of a device tensor, with its strides where they are dense. Waits for the device."""
    value = value_of(tensor)
    if value.buffer is None or not _cheap_on_host(tensor, value):
        array = fetch(snapshot(tensor))
    else:
        array = fetch(value)
        if not shows_all(tensor, value.spec):
            return _view_on_host(tensor, value, array)
    result = from_numpy(np.array(array, order="C"))
    stride = _dense_spec(tensor).stride
    if result.stride() == stride:
        return result
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(result)


def fetch(value: Value) -> np.ndarray:
    """The contents of a value, read-only. Waits for the device."""
    buffer = materialise(value)
    with metrics.timed("TransferFromDeviceTime"):
        try:
            array = buffers.get(buffer)
        except jax.errors.JaxRuntimeError as error:
            raise executor.failure(error, "an earlier step", "") from error
    metrics.metric("InboundData", Unit.BYTES).add(array.nbytes)
    wanted = dtypes.to_jax(value.spec.dtype)
    return array if array.dtype == wanted else array.astype(wanted)


def _cheap_on_host(tensor: torch.Tensor, value: Value) -> bool:
    # Cutting a view out on the host saves a compile, if the bytes copied for nothing are few or cost nothing.
    if shows_all(tensor, value.spec):
        return True
    if value.device.jax_device.platform == "cpu":
        return True
    return tensor.numel() * 4 >= value.spec.numel


def _view_on_host(tensor: torch.Tensor, value: Value, array: np.ndarray) -> torch.Tensor:
    view = view_of(tensor)
    dtype = view.dtype
    base = Geometry(value.spec.size, value.spec.stride)
    flat = from_numpy(np.array(array.transpose(base.memory_order()), order="C").reshape(-1))
    if dtype is not value.spec.dtype:
        flat = flat.view(torch.uint8).view(dtype) if not flat.dtype.is_complex else torch.view_as_real(flat).reshape(-1)
    shown = flat.as_strided(view.geometry.size, view.geometry.stride, view.geometry.offset)
    shown = shown.conj() if view.conj else shown
    return (-shown if view.neg else shown).clone().resolve_conj()


def item(tensor: torch.Tensor) -> Any:
    """The Python number in a one-element tensor. Waits for the device."""
    return to_cpu(tensor).item()
