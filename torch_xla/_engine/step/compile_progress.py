"""Print a line on the terminal while a compilation takes long.

Nothing is written elsewhere (files, pipes, notebooks): the events and the metrics have the same facts.
"""

import sys
import threading
import time
from _thread import LockType, allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager

from ..metrics import user_lines
from ..metrics.user_lines import Line
from ..processes import identity

# Compilations of fewer seconds are not worth a line; the line is rewritten so often.
PATIENCE, EVERY = 4.0, 1.0

_ANEW = "\r\x1b[2K"

# Seconds that the end of a compilation waits for a line that is being written, so that its own line comes last. It does
# not wait forever: that thread may collect garbage, and a finalizer may wait for the compilation to end.
_LAST_WORD = 1.0


@contextmanager
def report_progress(operations: int, frames: tuple[Line, ...]) -> Iterator[None]:
    """Report what is compiled, how large it is and how long it takes, while the block runs and takes long."""
    if identity.place().index or not _is_terminal():
        yield
        return
    what = f"a program of {operations:,} operations ({user_lines.text(frames[0])})"
    start = time.perf_counter()
    # Held while it runs. Not an `Event`: a thread with an event's inner lock may collect garbage, run a finalizer that
    # records, and wait for the thread that compiles.
    running = allocate_lock()
    running.acquire()
    work = running, what, start
    printer = threading.Thread(target=_print_progress, args=work, name="torch_xla-progress", daemon=True)
    printer.start()
    try:
        yield
    finally:
        running.release()
        seconds = time.perf_counter() - start
        if seconds > PATIENCE:
            printer.join(_LAST_WORD)
            _write(f"{_ANEW}torch_xla compiled {what} in {seconds:.0f} s\n")


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _print_progress(running: LockType, what: str, start: float) -> None:
    patience = PATIENCE
    while not running.acquire(timeout=patience):
        _write(f"{_ANEW}torch_xla compiles {what}: {time.perf_counter() - start:.0f} s so far")
        patience = EVERY


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # the terminal has gone: a compilation does not end for that
