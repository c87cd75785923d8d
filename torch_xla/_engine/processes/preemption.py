"""Preemption: a machine announces by SIGTERM that it will end, and all processes of the program agree on a last step.

JAX's service does this. It replaces the handler of SIGTERM, so the signal does not end the process.
"""

import atexit
import os
import signal
import threading
from typing import Any

from ..atomic import lock
from ..compat.names import jax_coordination as private
from . import coordination, identity

_lock = lock()
_is_active = False
_pid = 0  # of the process that listens: a fork of it does not
_alone: private.Alone | None = None  # what the service speaks by where there is one process
_handler: Any = None  # what handled SIGTERM before

_asked: int | None = None  # the step that was asked about last
_count = 0  # how many different ones were
_is_reached = False


def activate() -> None:
    """Let JAX's service handle SIGTERM, as the announcement that the machine will end, if it does not do so already."""
    global _is_active, _pid, _alone, _handler, _asked, _count, _is_reached
    with _lock:
        if _is_active:
            return
        _handler = signal.getsignal(signal.SIGTERM)
        if identity.process_count() == 1:
            _alone = private.Alone()
        private.start_preemption_service(coordination.client() if _alone is None else _alone.client)
        _asked, _is_active, _pid = None, True, os.getpid()
        if _alone is not None:
            # Several processes agree once: JAX's notice stays with them as long as the program runs.
            _count, _is_reached = 0, False
        atexit.register(deactivate)


def deactivate() -> None:
    """Restore the handler of SIGTERM."""
    global _is_active, _alone
    with _lock:
        if not _is_active or os.getpid() != _pid:
            return
        _is_active = False
        atexit.unregister(deactivate)
        private.stop_preemption_service()
        alone, _alone = _alone, None
        if alone is not None:
            alone.end()
        if _handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _handler)


def is_reached(step: int) -> bool:
    """Return whether a machine of the program will end, and all processes agreed to save at this or an earlier step.

    Every process calls this with the same steps, in the same order. Raises `RuntimeError` before `activate`.
    """
    global _asked, _count, _is_reached
    with _lock:
        if not _is_active:
            raise RuntimeError(
                "No service listens for a preemption of the machine: call "
                "torch_xla._XLAC._activate_preemption_sync_manager() first, or make "
                "CheckpointManager(..., chkpt_on_preemption=True)."
            )
        # JAX agrees on the next number: steps that a program leaves out would be missed.
        if step != _asked:
            _asked, _count = step, _count + 1
            _is_reached = _is_reached or private.is_preemption_step(_count)
        return _is_reached
