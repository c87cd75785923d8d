"""Compile and wait without holding the lock that recording needs.

A program is found under the lock. It is compiled, and waits for its turn, without; then it runs under the lock. What
was recorded meanwhile by another thread makes another program, which is compiled in its turn.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..compile.program import Program
from ..metrics.events import Cause
from ..tensor.device import LOCK
from . import device_waits, executor, in_flight
from .in_flight import SourceLines

# So often a program may have become another one while it was compiled, or have lost its turn: then others wait for the
# one that is to run.
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Attempt:
    """How something is tried that may have to compile, or wait for its turn, first."""

    compiles: bool  # whether it may do that by itself, and have others wait
    seconds: float = 0.0  # that went by in compiling and waiting before it
    compiled: Program | None = None  # before it, and for it


_FIRST = Attempt(False)


class NotReady(Exception):
    """Something has to be done first, without the lock; it gives the program if that was compiled for the run."""

    def __init__(self, program: Program, do_it: Callable[[], Program | None]) -> None:
        super().__init__(program)
        self.do_it = do_it


class NotCompiled(NotReady):
    """What is to run must be compiled first."""

    def __init__(
        self,
        program: Program,
        numbers: Sequence[float | int],
        buffers: Sequence[Any],
        cause: Cause,
        source_lines: SourceLines,
    ) -> None:
        super().__init__(program, lambda: program if prepare(program, numbers, buffers, cause, source_lines) else None)


class NotItsTurn(NotReady):
    """What is to run must wait first for those before it, or for the memory that they take."""

    def __init__(self, program: Program, compiled: Program | None) -> None:
        def wait() -> Program | None:
            wait_for_turn(program)
            return compiled

        super().__init__(program, wait)


class _Thread(threading.local):
    is_compiling = False


_thread = _Thread()


def prepare(
    program: Program,
    numbers: Sequence[float | int],
    buffers: Sequence[Any],
    cause: Cause,
    source_lines: SourceLines,
) -> bool:
    """Compiles the program for these numbers, as one thread at a time does; whether it had to be."""
    if _thread.is_compiling:
        # A finalizer that runs in the middle of another compilation waits for nobody: they might wait for this thread.
        return executor.prepare(program, numbers, cause, source_lines, buffers)
    try:
        _thread.is_compiling = True
        with program.turn:
            return executor.prepare(program, numbers, cause, source_lines, buffers)
    finally:
        _thread.is_compiling = False


def is_turn(program: Program) -> bool:
    """Whether `wait_for_turn` would not wait."""
    return not (program.is_limited and not device_waits.is_turn(program.starts)) and in_flight.has_memory(program)


def wait_for_turn(program: Program | None) -> None:
    """Waits for the turn of a program that is about to run, or one like it: so it does not wait under the lock."""
    if program is None or LOCK._is_owned():  # type: ignore[attr-defined]
        return
    if program.is_limited:
        device_waits.for_turn(program.starts, LOCK)
    in_flight.wait_for_memory(program)


def under_lock(work: Callable[[Attempt], None]) -> None:
    """Does `work` under the lock. Where it raises `NotReady`, that is seen to without, and it is done again.

    Not where the thread holds the lock already: somebody is in the middle of something then.
    """
    seconds, compiled, attempt = 0.0, None, _FIRST
    for _ in range(0 if LOCK._is_owned() else _ATTEMPTS):  # type: ignore[attr-defined]
        try:
            with LOCK:
                work(attempt)
            return
        except NotReady as found:
            do_it = found.do_it
        started = time.perf_counter()
        compiled = do_it()
        del do_it  # with the buffers that it knows
        seconds += time.perf_counter() - started
        attempt = Attempt(False, seconds, compiled)
    with LOCK:
        work(Attempt(True, seconds, compiled))
