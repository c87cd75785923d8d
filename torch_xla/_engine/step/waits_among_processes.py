"""Wait for the device, and notice when other processes would keep it waiting forever.

A collective waits in C++ for processes that may be gone or never come, and nothing interrupts that wait. So in a
program of several processes a separate thread waits for the device, and the caller waits for that thread: there Ctrl-C
reaches it, and so does the fault that another process declares. After a long wait it asks the other processes where
they are.
"""

import atexit
import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from .. import config
from ..errors import PeerError
from ..processes import coordination, heartbeats
from ..runtime import buffers, launch_throttle
from .collective_consistency import look_for_the_missing

logger = logging.getLogger(__name__)

# How long a process waits before it looks at the clock.
_SECOND = 1.0

# How many seconds the main thread has waited, in a program of several processes.
waited = 0.0


class _Request:
    """Arrays that a thread waits for."""

    def __init__(self, arrays: Sequence[object]) -> None:
        self.arrays = arrays
        self.done = threading.Event()
        self.has_ended = False
        self.error: Exception | None = None


class _Waiter:
    """A thread that waits for one request after the other."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="torch_xla-waiter", daemon=True).start()

    def _run(self) -> None:
        while True:
            request = self.requests.get()
            try:
                jax.block_until_ready(request.arrays)
            except Exception as error:  # the waiting thread raises it
                request.error = error
            request.has_ended = True
            request.done.set()
            if request in _stuck:
                _stuck.remove(request)
            _idle.append(self)
            del request


_idle: list[_Waiter] = []
# Requests whose wait was given up.
_stuck: list[_Request] = []


def until_ready(arrays: Sequence[Any]) -> None:
    """Wait until the arrays are there. Raises what computing them raised.

    In a program of several processes it raises `PeerError` if one of them declares a fault, as soon as it does.
    """
    global waited
    watch = heartbeats.watch()
    if watch is None:
        buffers.wait(arrays)
        return
    wanted = [array for array in arrays if not array.is_ready()]
    if not wanted:
        try:
            buffers.wait(arrays)  # which raises, if it failed
        except jax.errors.JaxRuntimeError as error:
            raise failure_of(error) or error from error
        return
    request = _Request(wanted)
    try:
        waiter = _idle.pop()
    except IndexError:
        waiter = _Waiter()
    watch.woken.add(request.done)
    begin = time.monotonic()
    try:
        waiter.requests.put(request)
        _wait_for(request, watch)
    finally:
        if threading.current_thread() is threading.main_thread():
            waited += time.monotonic() - begin
        watch.woken.discard(request.done)
        if not request.has_ended:  # a fault, or an interrupt
            _stuck.append(request)


class _Run(NamedTuple):
    """A run as something to wait for; JAX waits for what a tuple holds."""

    token: object

    def is_ready(self) -> bool:
        """Return False: only a wait would show it."""
        return False


def may_launch(count: int) -> bool:
    """Return whether `wait_for_launch` would not wait: the runs before are known to have ended."""
    return all(
        [launch_throttle.last[place] is launch_throttle.NEVER for place in range(min(count, launch_throttle.MOST))]
    )


_NO_LOCK = contextlib.nullcontext()


def wait_for_launch(count: int, lock: contextlib.AbstractContextManager[object] = _NO_LOCK) -> None:
    """Wait until `count` runs on several devices of this host may begin, in turn (`runtime/launch_throttle`).

    Pass the `lock` under which programs are started unless the caller holds it: what has ended is noted under it.
    """
    for place in range(min(count, launch_throttle.MOST)):
        run = launch_throttle.last[place]
        if run is launch_throttle.NEVER:
            continue
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            until_ready([_Run(run)])
        with lock:
            launch_throttle.forget(place, run)


def _wait_for(request: _Request, watch: heartbeats.Watch) -> None:
    begin = time.monotonic()
    patience = seconds = config.collective_seconds()
    while not request.has_ended:
        request.done.wait(_SECOND)
        if watch.fault and not request.has_ended:
            raise watch.error()
        if not request.has_ended and time.monotonic() - begin > patience:
            patience += seconds
            look_for_the_missing(watch, seconds)
    if request.error is not None:
        raise failure_of(request.error) or request.error from request.error


def failure_of(error: Exception) -> PeerError | None:
    """Return the failure of another process that caused an error of the device, if there was one."""
    watch = heartbeats.watch()
    return watch.failure_of(str(error)) if watch is not None else None


def _leave() -> None:
    """End this process at once, as one that failed, if a collective still runs whose wait was given up.

    The client of the device would wait for that collective when Python closes the client, perhaps forever. Do the same
    if this process could not do its part in a collective of the others.
    """
    if coordination.has_failed_at_end or any(not request.has_ended for request in _stuck):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)


# Before anything of the user's is registered, and so after all of that has been called.
atexit.register(_leave)
