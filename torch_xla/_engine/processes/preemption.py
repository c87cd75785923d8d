"""Preemption: a machine announces by SIGTERM that it will end, and all processes of the program agree on a last step.

JAX's service catches the signal in each process; it replaces the handler of SIGTERM, so the signal does not end the
process. A process that was told so writes to all. Each answers by the number of its newest step and does not go beyond
the next one before it knows the answers of all: the step after the largest of them is the last.
"""

import atexit
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

from .. import config
from ..atomic import lock
from ..compat.names import jax_coordination as private
from .coordination import awaited_of, connect
from .heartbeats import Watch
from .heartbeats import handlers as letter_handlers
from .heartbeats import watch as current_watch
from .identity import process_count

_ANSWER = "preemption"

_lock = lock()
_is_active = False
_pid = 0  # of the process that listens: a fork of it does not
_notifier: private.PreemptionNotifier | None = None
_handler: Any = None  # what handled SIGTERM before

_asked: int | None = None  # the step that was asked about last
_count = 0  # how many different ones were
_is_signalled = False  # a signal came to this process
_is_answered = False  # this process has told the others its newest step
_last: int | None = None  # the number of the last step, once it is agreed


def activate() -> None:
    """Let JAX's service handle SIGTERM, as the announcement that the machine will end, if it does not do so already."""
    global _is_active, _pid, _notifier, _handler, _asked, _count, _is_signalled, _last
    with _lock:
        if _is_active:
            return
        connect()
        _handler = signal.getsignal(signal.SIGTERM)
        _notifier = private.PreemptionNotifier()
        private.answer_preemption(is_reached)
        _asked, _is_signalled, _is_active, _pid = None, False, True, os.getpid()
        if process_count() == 1:
            # Several processes agree once: that they end stays true as long as the program runs.
            _count, _last = 0, None
        atexit.register(deactivate)


def deactivate() -> None:
    """Restore the handler of SIGTERM."""
    global _is_active, _notifier
    with _lock:
        if not _is_active or os.getpid() != _pid:
            return
        _is_active = False
        atexit.unregister(deactivate)
        private.answer_preemption(None)
        notifier, _notifier = _notifier, None
        if notifier is not None:
            notifier.end()
        if _handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _handler)


def is_reached(step: int) -> bool:
    """Return whether a machine of the program will end, and all processes agreed to save at this or an earlier step.

    Every process calls this with the same steps, in the same order. Raises `RuntimeError` before `activate`, and
    `PeerError` if a process ends, or does not activate this, before all agree.
    """
    global _asked, _count, _is_signalled, _last
    with _lock:
        if not _is_active or _notifier is None:
            raise RuntimeError(
                "No service listens for a preemption of the machine: call "
                "torch_xla._XLAC._activate_preemption_sync_manager() first, or make "
                "CheckpointManager(..., chkpt_on_preemption=True)."
            )
        if step != _asked:
            # Steps are numbered here, because a program may leave out some.
            _asked, _count = step, _count + 1
            if not _is_signalled and _notifier.is_step(_count):
                _is_signalled = True
                _tell_all()
            elif _is_answered and _last is None:
                _last = _agreed()
        return _last is not None and _count >= _last


def _tell_all() -> None:
    global _last
    watch = current_watch()
    if watch is None:
        _last = _count
    else:
        watch.send(range(watch.place.count), {"kind": _ANSWER})


def _answer(watch: Watch, letter: Mapping[str, object]) -> None:
    """Tell the others the newest step of this process, once."""
    global _is_answered
    if _is_answered:
        return  # without the lock: the program may hold it while it waits for the others
    with _lock:
        watch.propose(f"{_ANSWER}/{watch.place.index}", str(_count))
        _is_answered = True


def _agreed() -> int:
    """Return the number of the last step: the first that no process has begun."""
    seconds = config.rendezvous_seconds()
    answers = [
        awaited_of([index], f"{_ANSWER}/{index}", seconds, "agree on the step to end at")
        for index in range(process_count())
    ]
    return max(map(int, answers)) + 1


letter_handlers[_ANSWER] = _answer
