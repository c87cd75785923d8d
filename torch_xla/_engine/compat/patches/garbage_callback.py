"""Run callbacks of the garbage collector without losing an interrupt.

Python prints an exception of a function in `gc.callbacks` and goes on. Ctrl-C raises where a Python function begins. So
an interrupt during a collection is raised in the first callback that is written in Python, and is lost. A callback of C
functions leaves the interrupt to the code that was running. JAX's callback is written in Python.
"""

import ctypes
import functools
import gc
import operator
import sys
from collections.abc import Callable
from typing import Any

from jax._src import lib


class _After:
    """Has the main thread call what is to be done behind a collection, where it looks at signals next."""

    functions: list[Callable[[], None]] = []
    collections = 0

    def __bool__(self) -> bool:
        # As anywhere in a program, what is raised here is raised where the main thread is.
        done = gc.get_stats()[-1]["collections"]
        if done != self.collections and not sys.is_finalizing():
            self.collections = done
            for function in self.functions:
                function()
        return False

    # A callback is called with the phase, "start" or "stop", and a dict: as `getattr(object, phase, default)` is.
    stop = property(operator.methodcaller("schedule"))


_after = _After()
# A pending call of Python's is a C function that takes a pointer and returns 0, or something else if it has raised:
# as the one that asks for the truth of an object which is false.
_After.schedule = functools.partial(  # type: ignore[attr-defined]
    ctypes.pythonapi.Py_AddPendingCall,
    ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p),
    ctypes.c_void_p(id(_after)),
)
_schedule = functools.partial(getattr, _after)


def after_full_collections(function: Callable[[], None]) -> None:
    """Call `function` after each full garbage collection, in the main thread."""
    if function not in _after.functions:
        _after.functions.append(function)
    if _schedule not in gc.callbacks:
        gc.callbacks.append(_schedule)


def keep_interrupts() -> None:
    """Replace JAX's callback, which loses interrupts, by one of C functions."""
    theirs = getattr(lib, "_xla_gc_callback", None)
    release: Any = getattr(getattr(lib, "_jax", None), "collect_garbage", None)
    if theirs not in gc.callbacks or release is None:
        return

    class Releasing:
        """It releases what JAX's C++ holds of Python, in both phases, as theirs does."""

        call = staticmethod(release)
        start = stop = property(operator.methodcaller("call"))

    gc.callbacks[gc.callbacks.index(theirs)] = functools.partial(getattr, Releasing())
