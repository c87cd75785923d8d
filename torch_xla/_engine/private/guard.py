"""What PyTorch's C++ asks a device guard, answered in Python.

The guard of a Python backend knows one device: it says that there is one, and that ordinal 0 is the current one. So
nothing on `xla:1` could be differentiated, for the backward engine keeps a queue for each ordinal; and `.to("xla")`
would ignore the ordinal a thread has chosen. PyTorch offers Python no way to say otherwise, but its guards lie in a
table that is exported, one for each device type, and calls go through their table of methods.

And it may not let exceptions of hooks out of a backward pass (`let_exceptions_pass`).
"""

import ctypes
import os
from collections.abc import Callable
from typing import Any

import torch

_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_CPU = 0
_OURS = 20  # PrivateUse1
_UNUSED_TYPE = 3  # OPENGL, which no build has

# A guard's methods in the order of its header, the same from PyTorch 2.11 to 2.15: type, exchangeDevice, getDevice,
# setDevice, uncheckedSetDevice, getStream, getDefaultStream, getStreamFromGlobalPool, getNewStream, exchangeStream, …
# Before the first lie two words about the class; we copy more methods than there are.
_GET_DEVICE, _EXCHANGE_STREAM = 2, 9
_WORDS_BEFORE, _METHODS = 2, 40

_keep: list[Any] = []


def answer_for_device_count(count: Callable[[], int]) -> bool:
    """Lets `count` say how many devices the backward engine needs queues for; False if this PyTorch does not allow it.

    The engine asks the guards of all device types, once, and takes the largest answer: a guard of a type that exists
    on no machine answers for us.
    """
    guards = _guards()
    if guards is None or guards[_UNUSED_TYPE]:
        return False
    method = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)
    tell_type, tell_count = method(lambda _: _UNUSED_TYPE), method(lambda _: count())
    # Of the methods besides `type()` the engine calls the count, and `setDevice`, whose result nobody reads.
    methods = (ctypes.c_void_p * _METHODS)(*[ctypes.cast(tell_count, ctypes.c_void_p).value] * _METHODS)
    methods[0] = ctypes.cast(tell_type, ctypes.c_void_p).value
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
    _keep.extend((tell_type, tell_count, methods, guard))
    guards[_UNUSED_TYPE] = ctypes.addressof(guard)
    return True


def answer_for_current_device(current: Callable[[], int]) -> bool:
    """Lets `current` say which ordinal a bare device name means; False if this PyTorch does not allow it."""
    # A device is two bytes, its type and its ordinal, and returned in a register.
    tell = ctypes.CFUNCTYPE(ctypes.c_int16, ctypes.c_void_p)(lambda _: _OURS | current() << 8)
    _keep.append(tell)
    return _replace(_GET_DEVICE, ctypes.cast(tell, ctypes.c_void_p).value)


def let_exceptions_pass() -> bool:
    """Lets an exception leave the backward engine; False if this PyTorch does not allow it.

    While an exception of a hook leaves a node, the engine gives the node's stream back. A Python guard does that by
    calling Python, which fails because of that very exception, where C++ may not fail: the process would end. There are
    no streams here, so the method is the CPU's, which does nothing.
    """
    guards = _guards()
    if guards is None or not guards[_CPU]:
        return False
    methods = ctypes.c_void_p.from_address(guards[_CPU]).value
    if methods is None:
        return False
    return _replace(_EXCHANGE_STREAM, (ctypes.c_void_p * _METHODS).from_address(methods)[_EXCHANGE_STREAM])


def _replace(method: int, function: int | None) -> bool:
    """Gives our guard another method, in a copy of its table."""
    guards = _guards()
    if guards is None or not guards[_OURS]:
        return False
    word = ctypes.sizeof(ctypes.c_void_p)
    theirs = ctypes.c_void_p.from_address(guards[_OURS])
    if theirs.value is None:
        return False
    table = (ctypes.c_void_p * (_WORDS_BEFORE + _METHODS)).from_address(theirs.value - _WORDS_BEFORE * word)
    copied = (ctypes.c_void_p * (_WORDS_BEFORE + _METHODS))(*table)
    copied[_WORDS_BEFORE + method] = function
    _keep.append(copied)
    theirs.value = ctypes.addressof(copied) + _WORDS_BEFORE * word
    return True


def _guards() -> Any:
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    library = next((name for name in ("libc10.so", "libc10.dylib") if os.path.exists(os.path.join(folder, name))), None)
    if library is None:
        return None
    try:
        return (ctypes.c_void_p * (_OURS + 1)).in_dll(ctypes.CDLL(os.path.join(folder, library)), _GUARDS)
    except ValueError:
        return None
