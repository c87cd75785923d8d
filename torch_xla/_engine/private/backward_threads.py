"""How many devices PyTorch's backward engine has threads for.

The engine asks the guards of all device types how many devices there are, once, and keeps one queue for each ordinal.
The guard of a Python backend always answers 1, so nothing on `xla:1` could be differentiated. A guard of a device type
that exists on no machine answers for us.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Any

import torch

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # one pointer to a guard for each device type
_UNUSED_TYPE = 3  # OPENGL
_METHODS = 64  # more than a guard has

_keep: list[Any] = []


def answer_for_device_count(count: Callable[[], int]) -> bool:
    """Lets `count` say how many devices there are; False if this PyTorch does not show its registry of guards."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    library = next((name for name in ("libc10.so", "libc10.dylib") if os.path.exists(os.path.join(folder, name))), None)
    if library is None:
        return False
    try:
        registry = (ctypes.c_void_p * (_UNUSED_TYPE + 1)).in_dll(ctypes.CDLL(os.path.join(folder, library)), _REGISTRY)
    except ValueError:
        return False
    if registry[_UNUSED_TYPE]:
        return False
    method = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)
    tell_type, tell_count = method(lambda _: _UNUSED_TYPE), method(lambda _: count())
    # `type()` comes first. Of the others the engine calls the count, and `setDevice`, whose result nobody reads.
    methods = (ctypes.c_void_p * _METHODS)(*[ctypes.cast(tell_count, ctypes.c_void_p).value] * _METHODS)
    methods[0] = ctypes.cast(tell_type, ctypes.c_void_p).value
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
    _keep.extend((tell_type, tell_count, methods, guard))
    registry[_UNUSED_TYPE] = ctypes.addressof(guard)
    return True
