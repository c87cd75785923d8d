"""Eager mode: each operation runs when it is called, by a program of its own that is compiled once.

What shows an operand in another order, and a write through a view, are part of the operation's program.
"""

import time
from collections.abc import Callable

from .. import metrics
from ..dispatch import kernels
from ..tensor.device import Device, existing_devices
from ..tensor.sync import sync_device

_is_on = False
_compiles = metrics.counter("UncachedCompile")
_executing = metrics.metric("EagerOpExecuteTime")
_compiling = metrics.metric("EagerOpCompileTime")


def is_on() -> bool:
    """Whether operations run when they are called; not inside a region."""
    return _is_on


def switch(on: bool) -> None:
    """Turns eager mode on or off. What is recorded when it is turned on is started."""
    global _is_on
    if on and not _is_on:
        for device in existing_devices():
            sync_device(device)
    _is_on = on
    kernels.run_at_once(_run if on else None)


def _run(device: Device) -> None:
    compiled, start = _compiles.value, time.perf_counter_ns()
    sync_device(device)
    (_executing if _compiles.value == compiled else _compiling).add(time.perf_counter_ns() - start)


def suspended() -> Callable[[], None] | None:
    """Records again, until what this returns is called; `None` if eager mode is off."""
    if not _is_on:
        return None
    switch(False)
    return lambda: switch(True)
