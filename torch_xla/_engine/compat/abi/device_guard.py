"""Answer PyTorch's device guard calls for several ordinals.

The guard of a Python backend assumes one device: it reports a device count of one, ordinal 0 as the current one, and
streams of ordinal 0 only. Then nothing on `xla:1` could be differentiated, because the backward engine keeps a queue
for each ordinal; and `.to("xla")` would ignore the ordinal that a thread has chosen. PyTorch has no Python interface
for this. But it exports its table of guards, one for each device type, and calls go through a guard's table of methods.

C++ calls a guard where nothing may be raised, while Python raises an interrupt wherever Python code runs, even in the
few lines that look up a method of the guard: the process would end. So the methods here are C++'s own, or written in C.
No line of Python runs, and an interrupt waits until the program is back in Python (`let_exceptions_pass`).

If a release moved a method, we would overwrite another one. So `register_guard` and `confirm_layout` compare the table
of guards and the order of the methods with PyTorch's behaviour before anything is written, and refuse any difference.
"""

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from .supported_release import libc10, refuse

_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_CPU = 0
_UNNAMED = 9  # what "xla" is to PyTorch while PrivateUse1 has another name
_OURS = 20  # PrivateUse1

# A guard's methods in the order of its header, the same from PyTorch 2.11 to 2.15: type, exchangeDevice, getDevice,
# setDevice, uncheckedSetDevice, getStream, getDefaultStream, getStreamFromGlobalPool, getNewStream, exchangeStream,
# getStreamNativeHandle, destroyEvent, record, block, queryEvent, deviceCount, … Two words about the class precede the
# first method. We copy more words than there are methods.
_TYPE, _EXCHANGE_DEVICE, _GET_DEVICE, _GET_STREAM, _GET_NEW_STREAM, _EXCHANGE_STREAM = 0, 1, 2, 5, 8, 9
_RECORD, _BLOCK, _QUERY_EVENT, _DEVICE_COUNT, _QUERY_STREAM = 12, 13, 14, 15, 17
_WORDS_BEFORE, _METHODS = 2, 40

# A method that is called with an object and a number, and returns a pair of the two: `error_condition(number, *this)`.
# That is what getStream has to do, which is called with a guard and a device, two bytes of a register, and returns a
# device and the number of one of its streams. So the library of C++ has it for every processor, and ctypes, which can
# return no pairs, need not; the only stream of a device has the guard's address for a number.
_PAIRS = {
    "linux": ("libstdc++.so.6", "_ZNKSt3_V214error_category23default_error_conditionEi"),
    "darwin": ("libc++.1.dylib", "_ZNKSt3__114error_category23default_error_conditionEi"),
}

_keep: list[Any] = []


def register_guard(registration: Callable[[Any], object], guard: object) -> None:
    """Register `guard`, and confirm that PyTorch keeps guards where we look for them.

    Raises `RuntimeError` if it does not. Until then the table of guards is only read.
    """
    kinds = torch._C._autograd.DeviceType
    for kind, number in ((kinds.CPU, _CPU), (kinds.PrivateUse1, _OURS)):
        if kind.value != number:
            refuse("the numbers of device types", f"{kind} is {kind.value}, and {number} was expected")
    guards = _guards()
    if guards is None:
        refuse("the table of device guards", f"libc10 exports no {_GUARDS}")
    before = list(guards)
    registration(guard)
    changed = [number for number, (old, new) in enumerate(zip(before, guards, strict=True)) if old != new]
    if changed != [_OURS] or before[_OURS] is not None or before[_CPU] is None:
        refuse("the table of device guards", f"registering ours changed the entries {changed}, not [{_OURS}]")


def confirm_layout() -> None:
    """Confirm the position of each replaced method in a guard; `RuntimeError` if PyTorch calls another one.

    Meanwhile our guard is a table whose methods only record that they were called. Public calls of PyTorch then show
    which entry is which method. Nothing that may run at import calls three of the entries: `type`, `exchangeStream` and
    `deviceCount`. They are between entries that are confirmed.
    """
    called: dict[int, int] = {}
    # A device for what returns one, and true for what answers a question. No line of Python runs, as above.
    notes = [
        ctypes.CFUNCTYPE(ctypes.c_int64)(partial(called.setdefault, method, _OURS if method < _RECORD else 1))
        for method in range(_METHODS)
    ]
    table = (ctypes.c_void_p * _METHODS)(*[ctypes.cast(note, ctypes.c_void_p).value for note in notes])
    stand_in = ctypes.c_void_p(ctypes.addressof(table))
    made: dict[str, Any] = {}
    guards = _guards()
    ours = guards[_OURS]
    for name, (ask, expected) in _QUESTIONS.items():
        called.clear()
        guards[_OURS] = ctypes.addressof(stand_in)
        try:
            made[name] = ask(made)
        finally:
            guards[_OURS] = ours
        if not expected <= called.keys():
            refuse(
                "the methods of device guards",
                f"{name} called the methods {sorted(called)}, and {sorted(expected)} were expected",
            )


def _device(index: int | None = None) -> torch.device:
    name = torch._C._get_privateuse1_backend_name()
    return torch.device(name) if index is None else torch.device(name, index)


def _of_c(made: Any, device: torch.device) -> Any:
    """Return the stream or event that C++ makes, also when calls of the class are answered by us (`class_calls`)."""
    return made.__new__(made, device=device)


# Calls that use the methods, given the results of earlier calls, and the methods that each uses.
_QUESTIONS: dict[str, tuple[Callable[[dict[str, Any]], Any], set[int]]] = {
    "torch.Stream(device)": (lambda made: _of_c(torch.Stream, _device()), {_GET_DEVICE, _GET_NEW_STREAM}),
    "torch.Stream(device:0)": (lambda made: _of_c(torch.Stream, _device(0)), {_EXCHANGE_DEVICE, _GET_NEW_STREAM}),
    "Stream.query": (lambda made: made["torch.Stream(device)"].query(), {_QUERY_STREAM}),
    "torch.Event(device)": (lambda made: _of_c(torch.Event, _device()), set()),
    "Event.record": (lambda made: made["torch.Event(device)"].record(), {_GET_DEVICE, _GET_STREAM, _RECORD}),
    "Event.wait": (lambda made: made["torch.Event(device)"].wait(made["torch.Stream(device)"]), {_BLOCK}),
    "Event.query": (lambda made: made["torch.Event(device)"].query(), {_QUERY_EVENT}),
}


def device_word(index: int) -> int:
    """Return one of our devices as C++ returns it in a register: two bytes, its type and its ordinal."""
    return _OURS | index << 8


def answer_for_device_count(holder: object) -> bool:
    """Make `holder.count` the number of ordinals; return False if this PyTorch does not allow it.

    The backward engine makes a queue for each of them at the first backward pass of a process.
    """
    return _replace({_DEVICE_COUNT: _getter(ctypes.c_int8, holder, "count")})


def answer_for_current_device(holder: object) -> bool:
    """Make `holder.word`, a `device_word`, the meaning of a bare device; return False if this PyTorch forbids it."""
    get_device = _getter(ctypes.c_int16, holder, "word")
    # Nothing is exchanged: the ordinal of a thread is chosen in Python. The device it is given is not looked at.
    return _replace({_GET_DEVICE: get_device, _EXCHANGE_DEVICE: get_device})


def let_exceptions_pass() -> bool:
    """Keep Python out of the guard's other methods; return False if this PyTorch or this system forbids it.

    While an exception of a hook leaves a node, the backward engine gives the node's stream back, and whenever a result
    gets its place in a graph, it asks for the stream. With Python in these methods, an exception or an interrupt would
    end the process. A device has one stream, so there is nothing to exchange: that method is the CPU's.
    """
    theirs = _methods_of(_CPU)
    stream = _stream_of_device()
    if theirs is None or stream is None:
        return False
    get_type = _getter(ctypes.c_int8, SimpleNamespace(type=_OURS), "type")
    return _replace(
        {_TYPE: get_type, _GET_STREAM: stream, _GET_NEW_STREAM: stream, _EXCHANGE_STREAM: theirs[_EXCHANGE_STREAM]}
    )


def stand_for_unnamed() -> bool:
    """Install our guard for the device type named "xla" until the name is ours; False if PyTorch does not allow it.

    `tensor.to("xla")` asks this guard for the current ordinal, and copies to that device.
    """
    guards = _guards()
    if guards is None or not guards[_OURS] or torch._C._autograd.DeviceType.XLA.value != _UNNAMED:
        return False
    guards[_UNNAMED] = guards[_OURS]
    return True


def _getter(kind: Any, holder: Any, name: str) -> int | None:
    """Return the address of a method that returns an attribute of `holder`, with no line of Python run."""
    # It is called with the guard, which becomes the default of an attribute that is there.
    method = ctypes.CFUNCTYPE(kind, ctypes.c_void_p)(partial(getattr, holder, name))
    _keep.append(method)
    return ctypes.cast(method, ctypes.c_void_p).value


def _stream_of_device() -> int | None:
    """Return the address of a method that returns the stream of a device; `None` where C++ returns pairs in another
    way.
    """
    if sys.platform not in _PAIRS:
        return None
    library, name = _PAIRS[sys.platform]
    try:
        return ctypes.cast(ctypes.CDLL(library)[name], ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _methods_of(kind: int) -> Any:
    """Return the methods of the guard for a type of devices; `None` if there is none."""
    guards = _guards()
    table = ctypes.c_void_p.from_address(guards[kind]).value if guards is not None and guards[kind] else None
    return None if table is None else (ctypes.c_void_p * _METHODS).from_address(table)


def _replace(methods: dict[int, int | None]) -> bool:
    """Replace methods of our guard, in a copy of its table."""
    theirs = _methods_of(_OURS)
    if theirs is None:
        return False
    before = _WORDS_BEFORE * ctypes.sizeof(ctypes.c_void_p)
    table = ctypes.c_void_p * (_WORDS_BEFORE + _METHODS)
    copied = table(*table.from_address(ctypes.addressof(theirs) - before))
    for method, function in methods.items():
        copied[_WORDS_BEFORE + method] = function
    _keep.append(copied)
    ctypes.c_void_p.from_address(_guards()[_OURS]).value = ctypes.addressof(copied) + before
    return True


def _guards() -> Any:
    library = libc10()
    if library is None:
        return None
    try:
        return (ctypes.c_void_p * (_OURS + 1)).in_dll(library, _GUARDS)
    except ValueError:
        return None
