"""What PyTorch's C++ asks a device guard, answered in Python.

The guard of a Python backend knows one device: it says that there is one, and that ordinal 0 is the current one. So
nothing on `xla:1` could be differentiated, for the backward engine keeps a queue for each ordinal; and `.to("xla")`
would ignore the ordinal a thread has chosen. PyTorch offers Python no way to say otherwise, but its guards lie in a
table that is exported, one for each device type, and calls go through their table of methods.

And C++ calls a guard where nothing may be raised, while Python raises an interrupt wherever Python runs, be it in the
few lines that look a method of the guard up: the process would end. So what answers here is C++'s own, or written in C;
with no line of Python run, an interrupt waits until the program is back in Python (`let_exceptions_pass`).
"""

import ctypes
import mmap
import os
import platform
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_CPU = 0
_OURS = 20  # PrivateUse1
_UNUSED_TYPE = 3  # OPENGL, which no build has

# A guard's methods in the order of its header, the same from PyTorch 2.11 to 2.15: type, exchangeDevice, getDevice,
# setDevice, uncheckedSetDevice, getStream, getDefaultStream, getStreamFromGlobalPool, getNewStream, exchangeStream, …
# Before the first lie two words about the class; we copy more methods than there are.
_TYPE, _EXCHANGE_DEVICE, _GET_DEVICE, _GET_STREAM, _GET_NEW_STREAM, _EXCHANGE_STREAM = 0, 1, 2, 5, 8, 9
_WORDS_BEFORE, _METHODS = 2, 40

_keep: list[Any] = []
_python_streams: dict[int, int | None] = {}  # the methods that `let_exceptions_pass` replaced


def device_word(index: int) -> int:
    """One of our devices as C++ returns it in a register: two bytes, its type and its ordinal."""
    return _OURS | index << 8


def answer_for_device_count(holder: Any) -> bool:
    """Lets `holder.count` be for how many devices the backward engine has queues; False if PyTorch does not allow it.

    The engine asks the guards of all device types, once, and takes the largest answer: a guard of a type that exists
    on no machine answers for us.
    """
    guards = _guards()
    if guards is None or guards[_UNUSED_TYPE]:
        return False
    method = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)
    # Each is called with the guard, which becomes the default of an attribute that is there.
    tell_type = method(partial(getattr, SimpleNamespace(type=_UNUSED_TYPE), "type"))
    tell_count = method(partial(getattr, holder, "count"))
    # Of the methods besides `type()` the engine calls the count, and `setDevice`, whose result nobody reads.
    methods = (ctypes.c_void_p * _METHODS)(*[ctypes.cast(tell_count, ctypes.c_void_p).value] * _METHODS)
    methods[0] = ctypes.cast(tell_type, ctypes.c_void_p).value
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
    _keep.extend((tell_type, tell_count, methods, guard))
    guards[_UNUSED_TYPE] = ctypes.addressof(guard)
    return True


def answer_for_current_device(holder: Any) -> bool:
    """Lets `holder.word`, a `device_word`, be what a bare device means; False if this PyTorch does not allow it."""
    tell = ctypes.CFUNCTYPE(ctypes.c_int16, ctypes.c_void_p)(partial(getattr, holder, "word"))
    _keep.append(tell)
    address = ctypes.cast(tell, ctypes.c_void_p).value
    # Nothing is exchanged: the ordinal of a thread is chosen in Python. The device it is given is not looked at.
    return _replace({_GET_DEVICE: address, _EXCHANGE_DEVICE: address})


# `return c10::Stream(c10::Stream::DEFAULT, device)`, for a method called with the guard and a device: the stream
# is the device (two bytes) and a number, in two registers. ctypes has no function that returns two.
_DEFAULT_STREAM = {"x86_64": bytes.fromhex("0fb7c631d2c3")}  # movzx eax, si; xor edx, edx; ret


def let_exceptions_pass() -> bool:
    """Keeps Python out of the guard's other methods; False if this PyTorch or this machine does not allow it.

    While an exception of a hook leaves a node, the backward engine gives the node's stream back, and whenever a result
    gets its place in a graph, it asks for the stream. With Python in these methods, an exception or an interrupt would
    end the process. A device has one stream, so there is nothing to exchange: that method is the CPU's.
    """
    guards = _guards()
    if guards is None or not guards[_CPU]:
        return False
    methods = ctypes.c_void_p.from_address(guards[_CPU]).value
    if methods is None:
        return False
    done = _replace({_EXCHANGE_STREAM: (ctypes.c_void_p * _METHODS).from_address(methods)[_EXCHANGE_STREAM]})
    stream = _executable(_DEFAULT_STREAM.get(platform.machine(), b""))
    if not done or stream is None:
        return False
    tell = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(partial(getattr, SimpleNamespace(type=_OURS), "type"))
    _keep.append(tell)
    table = ctypes.c_void_p.from_address(guards[_OURS]).value
    if table is None:
        return False
    theirs = (ctypes.c_void_p * _METHODS).from_address(table)
    _python_streams.update({_GET_STREAM: theirs[_GET_STREAM], _GET_NEW_STREAM: theirs[_GET_NEW_STREAM]})
    return _replace({_TYPE: ctypes.cast(tell, ctypes.c_void_p).value, _GET_STREAM: stream, _GET_NEW_STREAM: stream})


def leave_streams_to_python() -> None:
    """Gives the guard its own way to streams back, for a process that uses several ordinals.

    The backward engine waits for streams of other devices by events, which know the streams that Python makes; an
    interrupt in the few lines that look these methods up can still end such a process.
    """
    if _python_streams:
        _replace(_python_streams)


def _executable(code: bytes) -> int | None:
    """Where a page with this machine code lies; `None` where pages that were written may not be executed."""
    if not code:
        return None
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    _keep.append(page)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return None if protect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) else address


def _replace(methods: dict[int, int | None]) -> bool:
    """Gives our guard other methods, in a copy of its table."""
    guards = _guards()
    if guards is None or not guards[_OURS]:
        return False
    word = ctypes.sizeof(ctypes.c_void_p)
    theirs = ctypes.c_void_p.from_address(guards[_OURS])
    if theirs.value is None:
        return False
    table = (ctypes.c_void_p * (_WORDS_BEFORE + _METHODS)).from_address(theirs.value - _WORDS_BEFORE * word)
    copied = (ctypes.c_void_p * (_WORDS_BEFORE + _METHODS))(*table)
    for method, function in methods.items():
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
