"""Make several steps atomic: no exception from outside (Ctrl-C, a finalizer) can arrive between them.

Python raises an interrupt (Ctrl-C, an alarm, `PyThreadState_SetAsyncExc`) where a function begins, where a loop jumps
back, and after a call. So no interrupt occurs between two stores, or inside a call of a function written in C. To
exclude interrupts between several calls, the calls are put into iterators written in C (`map`, `chain`), and one call,
`run_through`, runs the iterators to their end. Changing the class of an object is not allowed there: it calls Python's
audit hooks. All calls that belong together are prepared before the first of them runs. Interrupts are neither blocked
nor lost: an interrupt in the meantime is raised after `run_through`, when all calls are done.

From Python 3.14 on, an interrupt may also occur when a `with` has just taken a lock, which is then never released. So
locks are made by `lock`.

Finalizers are Python code, too, and run where garbage is collected. Where no finalizer may run, garbage collection is
off: XLA makes arrays inside of `run_through`, and PyTorch's modes are on while a call is planned. An object whose last
reference goes away there still runs its finalizer.

Garbage collection is also off in calls of JAX that take the traceback of the stack. Before Python 3.12, garbage may be
collected while a traceback is taken, since frames are allocated. If a finalizer calls JAX then, one traceback takes
over frames of the other, and later the code of a function is freed while it is in use. Therefore the engine calls JAX
through few functions, each `uncollected`: `runtime/buffers.py` moves, makes and waits for arrays, `compile/program.py`
compiles, `step/executor.py` runs, and functions that trace are `uncollected` themselves.
`tests/house/test_doors_into_jax.py` checks this. For the same reason `frames_of_threads` takes the frames of threads.
"""

import gc
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import repeat
from types import FrameType
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Takes all that an iterator gives, and keeps nothing of it.
run_through: Callable[[Iterable[Any]], None] = deque[Any](maxlen=0).extend


# The running calls without garbage collection, of all threads; and whether to turn it on after the last of them.
_inside: dict[object, None] = {}
_is_owed = False


def uncollected(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Collect no garbage while `function` runs, even where other threads begin or end such calls meanwhile."""

    @wraps(function)
    def alone(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        global _is_owed
        token = object()
        try:
            # Set this first: from here on no other thread turns garbage collection on. No thread runs between two
            # stores, either.
            _inside[token] = None
            if gc.isenabled():
                _is_owed = True
            gc.disable()
            return function(*args, **kwargs)
        finally:
            del _inside[token]
            if _is_owed and not _inside:
                _is_owed = False
                gc.enable()

    return alone


# Runs steps through. Garbage is collected before or after them.
without_collecting: Callable[[Iterable[object]], None] = uncollected(run_through)

# Returns the innermost frame of each thread, by the thread's identifier. Before Python 3.11.8 garbage may be collected
# before a frame that was found is taken. JAX has a callback for that, written in Python, where another thread may run:
# it leaves the function of this frame, and the process ends by SIGSEGV; or it starts a thread, and both wait for ever.
frames_of_threads: Callable[[], dict[int, FrameType]] = uncollected(sys._current_frames)


class _Lock(type(threading.RLock())):  # type: ignore[misc]
    """A reentrant lock that an interrupt behind its `__enter__` leaves as it was.

    A function of Python's is left without a look at interrupts, so the last place for one is inside of it. Where Dynamo
    evaluates frames (after a `torch.compile` in this process), there is one more look behind it, some nanoseconds late.
    A profile or trace function written in Python is called there, too, and what it raises leaves the lock taken.
    """

    def __enter__(self) -> bool:
        before = self._recursion_count()
        try:
            return self.acquire()  # type: ignore[no-any-return]
        except BaseException:
            if self._recursion_count() > before:
                self.release()
            raise


# Makes a reentrant lock, which no interrupt leaves taken that comes as a `with` block begins.
lock: Callable[[], threading.RLock] = _Lock if sys.version_info >= (3, 14) else threading.RLock


def stores(objects: Iterable[object], name: str, values: Iterable[object]) -> Iterator[None]:
    """Set the attribute `name` of each of the `objects` to its value, as it is run through."""
    return map(setattr, objects, repeat(name), values)  # type: ignore[func-returns-value]
