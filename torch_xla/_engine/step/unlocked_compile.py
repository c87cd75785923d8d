"""Compile and wait without holding the lock that recording needs.

A program is found under the lock, compiled and kept waiting without it, and started under it again. If another thread
has recorded operations meanwhile, the program is another one, which is compiled in its turn.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..compile.program import Program
from ..metrics.events import Cause
from ..tensor.device import LOCK
from .executor import prepare as prepare_program
from .in_flight import has_memory, wait_for_memory
from .step import SourceLines
from .waits_among_processes import may_launch, wait_for_launch

# So often a program may have become another one while it was compiled, or have lost its turn: then others wait for the
# one that is to run.
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Attempt:
    """How something is tried that may have to compile, or wait for its turn, first."""

    compiles: bool  # whether it may do that by itself, and have others wait
    seconds: float = 0.0  # that went by in compiling and waiting before it
    compiled: Program | None = None  # before it, and for it


FIRST = Attempt(False)
# An operation is being recorded: no other thread may record.
HOLDING = Attempt(True)


class NotReady(Exception):
    """Something has to be done first, without the lock; it gives the program if that was compiled for the run."""

    def __init__(self, program: Program, do_it: Callable[[], Program | None]) -> None:
        super().__init__(program)
        self.do_it = do_it


class NotCompiled(NotReady):
    """The program must be compiled first."""

    def __init__(
        self,
        program: Program,
        numbers: Sequence[float | int],
        buffers: Sequence[object],
        cause: Cause,
        source_lines: SourceLines,
    ) -> None:
        super().__init__(program, lambda: program if prepare(program, numbers, buffers, cause, source_lines) else None)


class NotItsTurn(NotReady):
    """The program must wait first for earlier programs, or for the memory that they take."""

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
    buffers: Sequence[object],
    cause: Cause,
    source_lines: SourceLines,
) -> bool:
    """Compile the program for these numbers, as one thread at a time does; whether it had to be."""
    if _thread.is_compiling:
        # A finalizer in the middle of a compilation must not wait for other threads: they might wait for this one.
        return prepare_program(program, numbers, cause, source_lines, buffers)
    try:
        _thread.is_compiling = True
        with program.turn:
            return prepare_program(program, numbers, cause, source_lines, buffers)
    finally:
        _thread.is_compiling = False


def is_turn(program: Program) -> bool:
    """Return whether `wait_for_turn` would not wait."""
    return not (program.is_limited and not may_launch(program.starts)) and has_memory(program)


def wait_for_turn(program: Program | None) -> None:
    """Wait for the turn of a program that is about to run, or one like it: so it does not wait under the lock."""
    if program is None or LOCK._is_owned():  # type: ignore[attr-defined]
        return
    if program.is_limited:
        wait_for_launch(program.starts, LOCK)
    wait_for_memory(program)


def under_lock(work: Callable[[Attempt], None]) -> None:
    """Do `work` under the lock. Where it raises `NotReady`, see to that without the lock, and do it again."""
    # Where the thread holds the lock already, it is in the middle of something: it compiles and waits under the lock.
    attempt = HOLDING if LOCK._is_owned() else FIRST  # type: ignore[attr-defined]
    try:
        with LOCK:
            work(attempt)
        return
    except NotReady as found:
        needed = [found.do_it]
    when_ready(work, needed)


def when_ready(work: Callable[[Attempt], None], needed: list[Callable[[], Program | None]]) -> None:
    """Do what is `needed` for `work` without the lock, and then `work` under it.

    If `work` then needs something else too often, it does that under the lock. A thing that is done leaves the
    list, and with it the buffers that it refers to.
    """
    seconds = 0.0
    for nth in range(1, _ATTEMPTS + 1):
        started = time.perf_counter()
        compiled = needed[0]()
        needed.clear()
        seconds += time.perf_counter() - started
        try:
            with LOCK:
                work(Attempt(nth == _ATTEMPTS, seconds, compiled))
            return
        except NotReady as found:
            needed.append(found.do_it)
