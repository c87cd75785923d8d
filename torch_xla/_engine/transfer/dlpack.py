"""DLPack: share device memory with other libraries, without a copy where both sides can reach it."""

import ctypes
import weakref
from typing import Any, NamedTuple

import jax
import torch

from .. import dtypes
from ..ir.tape import Value
from ..ir.value_spec import contiguous_stride, spec_of
from ..ir.view.geometry import Geometry
from ..runtime import buffers
from ..step.liveness import are_owned
from ..step.sync import materialise, sync_device
from ..tensor.device import LOCK, Device, current_index, device_at, device_behind
from ..tensor.storage import META_KEYS, as_strided, replaced, shows_all, snapshot, value_of, wrap
from .host_copies import upload

_HOST, _CUDA, _PINNED = 1, 2, 3  # kDLCPU, kDLCUDA, kDLCUDAHost


class _Loan(NamedTuple):
    """Memory of a tensor that a capsule shows."""

    storage: "weakref.ref[torch.UntypedStorage]"
    dtype: torch.dtype
    shown: Geometry  # how the tensor looks at its storage
    strides: tuple[int, ...]  # the strides in the capsule

    def address(self) -> int | None:
        """Return the address of the first element; `None` once the tensors are gone or have been written to."""
        value = getattr(self.storage(), "value", None)
        if value is None or value.buffer is None:
            return None
        return int(value.buffer.unsafe_buffer_pointer()) + self.shown.offset * self.dtype.itemsize


# By the address in the capsule. `from_dlpack` of this package returns a tensor of the same storage for it.
_lent: dict[int, _Loan] = {}


def export(tensor: torch.Tensor) -> Any:
    """Return a DLPack capsule on what `tensor` shows: its own memory, where that has the order and the dtype it
    shows.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
        raise TypeError(f"to_dlpack() takes a tensor on an xla device; got {_described(tensor)}")
    with LOCK:
        device: Device = value_of(tensor).device
        if torch.complex32 in (tensor.dtype, value_of(tensor).spec.dtype):
            raise TypeError(
                "to_dlpack(): torch.complex32 is stored as torch.complex64 on an xla device. "
                "Give tensor.to(torch.complex64), or tensor.cpu()."
            )
        if device.spread is not None:
            raise RuntimeError(
                f"to_dlpack(): the tensor is on {len(device.spread.devices)} devices; a capsule has one. Give "
                "tensor.cpu(), or the parts: torch_xla.distributed.spmd.wrap_as_sharded_tensor(tensor).local_shards."
            )
    sync_device(device, wait=True)  # without the lock: others may record while it is compiled
    with LOCK:
        # Recorded operations must read the memory before the receiver writes to it.
        sync_device(device, wait=True)
        value = _of_its_own(tensor)
        if shows_all(tensor, value.spec):
            shown = _buffer_shown(value)
            if shown is value.buffer:
                _lend(tensor, contiguous_stride(tuple(tensor.shape)))
            return buffers.offered(shown)
        if _is_shown_by_strides(tensor, value):
            _lend(tensor, tensor.stride())
            flat = torch.utils.dlpack.from_dlpack(_buffer_shown(value)).reshape(-1)
            if tensor.dtype is not flat.dtype:
                flat = flat.view(tensor.dtype)
            return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).__dlpack__()
        return buffers.offered(_buffer_shown(snapshot(tensor)))


def _lend(tensor: torch.Tensor, strides: tuple[int, ...]) -> None:
    shown = Geometry(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
    storage = tensor.untyped_storage()
    address = _Loan(weakref.ref(storage), tensor.dtype, shown, strides).address()
    if address is not None and tensor.numel():
        ref = weakref.ref(storage, lambda _: _lent.pop(address, None))
        _lent[address] = _Loan(ref, tensor.dtype, shown, strides)


def _given_back(
    address: int, dtype: torch.dtype, size: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor | None:
    """Return the tensor of this memory, if the memory was lent and is still that of the tensor."""
    loan = _lent.get(address)
    if loan is None or loan.address() != address:
        return None
    if (dtype, size, strides) != (loan.dtype, loan.shown.size, loan.strides):
        return None
    storage = loan.storage()
    assert storage is not None
    made = torch.empty(0, dtype=dtype, device=storage.device)
    return made.set_(storage, loan.shown.offset, size, loan.shown.stride)  # type: ignore[call-overload, no-any-return]


def is_lent(capsule: object) -> bool:
    """Return whether it views memory of a living `xla` tensor that was not written to since."""
    if _name_of(capsule) not in _NAMES:
        return False
    address = _Exporter(capsule).address
    loan = _lent.get(address)
    return loan is not None and loan.address() == address


def _described(value: object) -> str:
    return f"one on {value.device}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _of_its_own(tensor: torch.Tensor) -> Value:
    """Return the value of the storage of `tensor`, computed, on a buffer that no other storage holds."""
    value = value_of(tensor)
    buffer = materialise(value)
    if value.shared or are_owned([value], besides=1):  # or another storage holds it too, for instance a clone's
        return value
    copy = Value(value.spec, value.device, None, -1)
    copy.buffer = buffers.copied(buffer)
    with LOCK:
        is_done = replaced((tensor.untyped_storage(),), (value,), (copy,))
    return copy if is_done else _of_its_own(tensor)  # another thread has written to it meanwhile


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
    """Return the buffer of `value`, kept from being given away. Another one, if it lives on the device in another
    dtype.
    """
    buffer: jax.Array = materialise(value)
    if buffer.is_deleted():
        raise buffers.deleted_error(buffer)
    wanted = dtypes.to_jax(value.spec.dtype)
    if buffer.dtype != wanted:
        buffer = buffers.converted(buffer, wanted)
    else:
        value.shared = True
    buffers.wait(buffer)
    return buffer


def adopt(source: object) -> torch.Tensor:
    """Return a tensor on the memory behind `source`, a DLPack capsule or an object that gives one.

    Memory of an `xla` tensor comes back as that tensor's storage.
    """
    if isinstance(source, torch.Tensor) and source.device.type == "xla":
        return source.detach()
    exporter = source if hasattr(source, "__dlpack_device__") else _Exporter(source)
    kind, index = exporter.__dlpack_device__()
    if kind in (_HOST, _PINNED):
        host = torch.utils.dlpack.from_dlpack(exporter)
        ours = _given_back(host.data_ptr(), host.dtype, tuple(host.shape), host.stride())
        return _adopt_host(host) if ours is None else ours
    if kind == _CUDA and exporter is not source and torch.cuda.is_initialized():
        # A bare capsule cannot be asked to order the two libraries' streams. It is PyTorch's, as it seems.
        torch.cuda.current_stream(index).synchronize()
    buffer = buffers.adopted(exporter)
    size = tuple(buffer.shape)
    ours = _given_back(buffer.unsafe_buffer_pointer(), dtypes.to_torch(buffer.dtype), size, contiguous_stride(size))
    return wrap(_shared_value(buffer)) if ours is None else ours


def _adopt_host(tensor: torch.Tensor) -> torch.Tensor:
    device = device_at(current_index())
    if not device.target.is_host:
        return wrap(upload(tensor, device))
    if tensor.stride() == contiguous_stride(tuple(tensor.shape)):
        return wrap(_imported(tensor))
    # JAX has no strides: it imports the memory as one row, and the tensor becomes a view of it.
    geometry = Geometry(tuple(tensor.shape), tensor.stride())
    flat = wrap(_imported(tensor.as_strided((geometry.extent,), (1,))))
    result: torch.Tensor = as_strided(META_KEYS, flat, geometry.size, geometry.stride, 0)
    return result


def _imported(tensor: torch.Tensor) -> Value:
    return _shared_value(buffers.adopted(tensor.detach()))


def _shared_value(buffer: jax.Array) -> Value:
    (home,) = buffer.devices()
    device = device_behind(home)
    if home is not device.target.device:
        buffer = buffers.move(buffer, device.target)
    size = tuple(buffer.shape)
    value = Value(spec_of(size, contiguous_stride(size), dtypes.to_torch(buffer.dtype)), device, None, -1)
    value.buffer = buffer
    value.shared = True
    return value


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def is_capsule(value: object) -> bool:
    """Return whether `value` is a capsule, of any name: Python has no class to test for."""
    return type(value).__name__ == "PyCapsule"


_NAMES = (b"dltensor", b"dltensor_versioned")  # names of capsules that are not consumed yet
_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype = ctypes.c_char_p
_name_of.argtypes = (ctypes.py_object,)
_address_in = ctypes.pythonapi.PyCapsule_GetPointer
_address_in.restype = ctypes.c_void_p
_address_in.argtypes = (ctypes.py_object, ctypes.c_char_p)


class _Exporter:
    """A bare capsule as an object that gives it, which is what libraries take now."""

    def __init__(self, capsule: object) -> None:
        if not is_capsule(capsule):
            raise TypeError(
                f"from_dlpack() takes a DLPack capsule or an object that gives one; got {_described(capsule)}"
            )
        name = _name_of(capsule)
        if name not in _NAMES:
            raise RuntimeError(
                f"from_dlpack() got a capsule called {name!r}; it takes 'dltensor' and 'dltensor_versioned'. A capsule "
                f"can be taken once: its name begins with 'used' then."
            )
        address = _address_in(capsule, name)
        described = _Versioned.from_address(address).tensor if b"_" in name else _Tensor.from_address(address)
        self._device = described.device_type, described.device_id
        self.address = (described.data or 0) + described.offset
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device
