"""DLPack: device tensors on memory that other libraries use too, without a copy where both sides can reach it."""

import ctypes
from sys import getrefcount
from typing import Any

import jax
import jax.numpy as jnp
import torch

from .. import dtypes
from ..client import buffers, platform
from ..graph.spec import contiguous_stride, spec_of
from ..graph.tape import Value
from ..record.device import LOCK, Device, current_index, device_at
from ..record.storage import META_KEYS, as_strided, shows_all, snapshot, value_of, wrap
from ..record.sync import materialise, sync_device
from ..view.geometry import Geometry
from . import transfer

_HOST = 1  # kDLCPU


def export(tensor: torch.Tensor) -> Any:
    """A DLPack capsule on what `tensor` shows: its own memory, where that has the order and the dtype it shows."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
        raise TypeError(f"to_dlpack() takes a tensor on an xla device; got {_described(tensor)}")
    with LOCK:
        device: Device = value_of(tensor).device
        if device.spread is not None:
            raise RuntimeError(
                f"to_dlpack(): the tensor lies on {len(device.spread.devices)} devices, and a capsule is of one. Give "
                "tensor.cpu(), or the parts: torch_xla.distributed.spmd.wrap_as_sharded_tensor(tensor).local_shards."
            )
        # What was recorded must see the memory as it is now, and the receiver may write to it at once.
        sync_device(device, wait=True)
        value = _of_its_own(tensor)
        if shows_all(tensor, value.spec):
            return _buffer_shown(value).__dlpack__()
        if _is_shown_by_strides(tensor, value):
            flat = torch.utils.dlpack.from_dlpack(_buffer_shown(value)).reshape(-1)
            if tensor.dtype is not flat.dtype:
                flat = flat.view(tensor.dtype)
            return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).__dlpack__()
        return _buffer_shown(snapshot(tensor)).__dlpack__()


def _described(value: Any) -> str:
    return f"one on {value.device}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _of_its_own(tensor: torch.Tensor) -> Value:
    """What the storage of `tensor` holds, computed, on a buffer that no other storage holds."""
    value = value_of(tensor)
    buffer = materialise(value)
    # The storage, the name `value` and the call itself; what is more is another storage, for instance a clone's.
    if value.shared or getrefcount(value) <= 3:
        return value
    copy = Value(value.spec, value.device, None, -1)
    with jax.enable_x64(True):
        copy.buffer = jnp.copy(buffer)
    tensor.untyped_storage().value = copy  # type: ignore[attr-defined]
    return copy


def _is_shown_by_strides(tensor: torch.Tensor, value: Value) -> bool:
    return (
        value.device.target.is_host
        and value.spec.is_contiguous
        and not tensor.is_conj()
        and not tensor.is_neg()
        and value.buffer.dtype == dtypes.to_jax(value.spec.dtype)
        and not (value.spec.is_complex and tensor.dtype is not value.spec.dtype)
    )


def _buffer_shown(value: Value) -> jax.Array:
    """The buffer of `value`, kept from being given away. Another one, if it lives on the device in another dtype."""
    buffer: jax.Array = materialise(value)
    wanted = dtypes.to_jax(value.spec.dtype)
    if buffer.dtype != wanted:
        with jax.enable_x64(True):
            return buffer.astype(wanted).block_until_ready()
    value.shared = True
    return buffer.block_until_ready()


def adopt(source: Any) -> torch.Tensor:
    """A tensor on the memory behind `source`, a DLPack capsule or an object that gives one."""
    if isinstance(source, torch.Tensor) and source.device.type == "xla":
        return source.detach()
    exporter = source if hasattr(source, "__dlpack_device__") else _Exporter(source)
    if exporter.__dlpack_device__()[0] == _HOST:
        return _adopt_host(torch.utils.dlpack.from_dlpack(exporter))
    with jax.enable_x64(True):
        return wrap(_shared_value(jax.dlpack.from_dlpack(exporter)))


def _adopt_host(tensor: torch.Tensor) -> torch.Tensor:
    device = device_at(current_index())
    if not device.target.is_host:
        return wrap(transfer.upload(tensor, device))
    if tensor.stride() == contiguous_stride(tuple(tensor.shape)):
        return wrap(_imported(tensor))
    # JAX has no strides: it gets the memory as it lies there, and the tensor is a view of that.
    geometry = Geometry(tuple(tensor.shape), tensor.stride())
    flat = wrap(_imported(tensor.as_strided((geometry.extent,), (1,))))
    result: torch.Tensor = as_strided(META_KEYS, flat, geometry.size, geometry.stride, 0)
    return result


def _imported(tensor: torch.Tensor) -> Value:
    with jax.enable_x64(True):
        return _shared_value(jax.dlpack.from_dlpack(tensor.detach()))


def _shared_value(buffer: jax.Array) -> Value:
    (home,) = buffer.devices()
    local = platform.local_devices()
    device = device_at(local.index(home) if home in local else current_index())
    if home is not device.target.device:
        buffer = buffers.move(buffer, device.target)
    size = tuple(buffer.shape)
    value = Value(spec_of(size, contiguous_stride(size), dtypes.to_torch(buffer.dtype)), device, None, -1)
    value.buffer = buffer
    value.shared = True
    return value


class _Tensor(ctypes.Structure):
    # As far as it is read here.
    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _is_capsule(value: Any) -> bool:
    return type(value).__name__ == "PyCapsule"


_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype = ctypes.c_char_p
_name_of.argtypes = (ctypes.py_object,)
_address_in = ctypes.pythonapi.PyCapsule_GetPointer
_address_in.restype = ctypes.c_void_p
_address_in.argtypes = (ctypes.py_object, ctypes.c_char_p)


class _Exporter:
    """A bare capsule as an object that gives it, which is what libraries take now."""

    def __init__(self, capsule: Any) -> None:
        if not _is_capsule(capsule):
            raise TypeError(
                f"from_dlpack() takes a DLPack capsule or an object that gives one; got {_described(capsule)}"
            )
        name = _name_of(capsule)
        if name not in (b"dltensor", b"dltensor_versioned"):
            raise RuntimeError(
                f"from_dlpack() got a capsule called {name!r}; it takes 'dltensor' and 'dltensor_versioned'. A capsule "
                f"can be taken once: its name begins with 'used' then."
            )
        address = _address_in(capsule, name)
        described = _Versioned.from_address(address).tensor if b"_" in name else _Tensor.from_address(address)
        self._device = described.device_type, described.device_id
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device
