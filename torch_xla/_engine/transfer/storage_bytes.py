"""`torch.UntypedStorage` on the device: bytes without a dtype.

An `xla` storage holds a value (`storage.value`), or bytes from the host that no tensor has looked at yet
(`storage.host`): so a parameter loaded from a file is uploaded once, with its own dtype.
"""

from typing import Any

import torch

from ..ir.tape import Value
from ..ir.view.geometry import Geometry
from ..tensor.upload import from_numpy
from .host_copies import fetch


def new(size: int, device: torch.device) -> torch.UntypedStorage:
    """Create an uninitialised storage of `size` bytes."""
    return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()


def nbytes(storage: torch.UntypedStorage) -> int:
    """Return the number of bytes of the storage."""
    host = _host(storage)
    if host is not None:
        return host.nbytes()
    value = _value(storage)
    return 0 if value is None else value.spec.numel * value.spec.dtype.itemsize


def host_copy(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return the bytes, on the CPU. Waits for the device."""
    host = _host(storage)
    if host is not None:
        return host.clone()
    value = _value(storage)
    if value is None:
        return torch.UntypedStorage(0)
    array = fetch(value)
    order = Geometry(value.spec.size, value.spec.stride).memory_order()
    elements = from_numpy(array.transpose(order).copy(order="C"))
    return (elements.to(value.spec.dtype) if value.spec.dtype is torch.complex32 else elements).untyped_storage()


def copy_into(target: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
    """Overwrite all of `target` with the bytes of `source`; at least one of them is on an `xla` device."""
    if target.nbytes() != source.nbytes():
        raise RuntimeError(f"size does not match, self was {target.nbytes()} bytes but src was {source.nbytes()} bytes")
    if target.device.type != "xla":
        target.copy_(host_copy(source))
        return
    if source.device == target.device:
        _set(target, _value(source), _host(source))
        return
    _set(target, None, source.clone() if source.device.type == "cpu" else source.cpu())


def resize(storage: torch.UntypedStorage, size: int) -> None:
    """Resize the storage and keep the bytes that fit; others are uninitialised."""
    has = nbytes(storage)
    if size == has:
        return
    value = _value(storage)
    dtype = torch.uint8 if value is None or size % value.spec.dtype.itemsize else value.spec.dtype
    resized = torch.empty(size // dtype.itemsize, dtype=dtype, device=storage.device)
    kept = min(size, has) // dtype.itemsize
    if kept:
        resized[:kept].copy_(_flat(storage, dtype)[:kept])
    _set(storage, _value(resized.untyped_storage()), None)


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return the whole storage as a tensor of bytes that shares it."""
    return _flat(storage, torch.uint8)


def _flat(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    flat = torch.empty(0, dtype=dtype, device=storage.device)
    return flat.set_(storage, 0, (nbytes(storage) // dtype.itemsize,), (1,))  # type: ignore[call-overload, no-any-return]


def _value(storage: torch.UntypedStorage) -> Value | None:
    return getattr(storage, "value", None)


def _host(storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
    return getattr(storage, "host", None)


def _set(storage: Any, value: Value | None, host: torch.UntypedStorage | None) -> None:
    storage.host = host
    if value is not None:
        storage.value = value
    elif hasattr(storage, "value"):
        del storage.value
