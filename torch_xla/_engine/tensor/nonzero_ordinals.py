"""Make tensors on ordinals above 0.

PyTorch's Python hook makes tensors on ordinal 0 only. A DLPack capsule with the device type for extensions, whose data
pointer is null, becomes a tensor on any ordinal of PrivateUse1.
"""

import ctypes
import functools

import torch

from ..compat.names import torch as private
from ..compat.names import torch_dispatch_keys
from ..compat.names.torch import redispatch_of

_view_as = redispatch_of(torch.ops.aten.view.dtype)

_EXTENSION_DEVICE = 12  # kDLExtDev
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


@functools.cache
def _dlpack_type(dtype: torch.dtype) -> tuple[int, int]:
    bits = dtype.itemsize * 8
    if dtype is torch.bool:
        return _CODES["bool"], 8
    if dtype is torch.bfloat16:
        return _CODES["bfloat"], 16
    if dtype.is_complex:
        return _CODES["complex"], bits
    if dtype.is_floating_point:
        return _CODES["float"], bits
    return _CODES["int" if dtype.is_signed else "uint"], bits


# PyTorch reads a description again when the memory is freed, to look for a deleter. So no description is freed: those
# of the sizes that came first are kept as they are, and for other sizes one is used that no thread is using.
_made: list[_Managed] = []
_unused: list[_Managed] = []
_kept: dict[tuple[int, tuple[int, ...], torch.dtype], tuple[int, bool]] = {}
_MOST_KEPT = 1024


def _description() -> _Managed:
    try:
        return _unused.pop()
    except IndexError:
        managed = _Managed()
        _made.append(managed)
        return managed


def tensor_on_ordinal(index: int, size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an empty contiguous tensor on `xla:index`."""
    found = _kept.get((index, size, dtype))
    if found is not None:
        address, is_plain = found
        tensor = private.from_dlpack(_new_capsule(address, b"dltensor", None))
        return tensor if is_plain else _view_as(torch_dispatch_keys.META_KEYS, tensor, dtype)
    # DLPack has float8 types since lately; as bytes they pass every version.
    carrier = torch.uint8 if dtype.itemsize == 1 and dtype.is_floating_point else dtype
    managed, shape = _description(), (ctypes.c_int64 * max(len(size), 1))(*size)
    managed.tensor = _Tensor(None, _EXTENSION_DEVICE, index, len(size), *_dlpack_type(carrier), 1, shape, None, 0)
    address = ctypes.addressof(managed)
    tensor = private.from_dlpack(_new_capsule(address, b"dltensor", None))
    if len(_kept) < _MOST_KEPT:
        _kept[index, tuple(size), dtype] = address, carrier is dtype
    else:
        _unused.append(managed)
    return tensor if carrier is dtype else _view_as(torch_dispatch_keys.META_KEYS, tensor, dtype)
