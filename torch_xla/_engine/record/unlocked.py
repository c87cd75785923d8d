"""Compiling without the lock that recording needs: a program is found under it, compiled without it, run under it.

What was recorded meanwhile by another thread makes another program, which is compiled in its turn.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..compile.program import Program
from ..execute import executor
from ..execute.executor import SourceLines
from ..metrics.events import Cause
from .device import LOCK

# So often a program may have become another one while it was compiled: then others wait for the one that is to run.
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Attempt:
    """How something is tried that may have to compile first."""

    compiles: bool  # whether it may compile by itself, and have others wait
    seconds: float = 0.0  # that went by in compiling before it
    compiled: Program | None = None  # before it, and for it


_FIRST = Attempt(False)


class NotCompiled(Exception):
    """What is to run must be compiled first."""

    def __init__(
        self,
        program: Program,
        numbers: Sequence[float | int],
        buffers: Sequence[Any],
        cause: Cause,
        source_lines: SourceLines,
    ) -> None:
        super().__init__(program)
        self.compile = lambda: program if prepare(program, numbers, buffers, cause, source_lines) else None


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


def under_lock(work: Callable[[Attempt], None]) -> None:
    """Does `work` under the lock. Where it raises `NotCompiled`, the program is compiled without, and it is done again.

    Not where the thread holds the lock already: somebody is in the middle of something then.
    """
    seconds, compiled, attempt = 0.0, None, _FIRST
    for _ in range(0 if LOCK._is_owned() else _ATTEMPTS):  # type: ignore[attr-defined]
        try:
            with LOCK:
                work(attempt)
            return
        except NotCompiled as found:
            compile_it = found.compile
        started = time.perf_counter()
        compiled = compile_it()
        del compile_it  # with the buffers that it knows
        seconds += time.perf_counter() - started
        attempt = Attempt(False, seconds, compiled)
    with LOCK:
        work(Attempt(True, seconds, compiled))
