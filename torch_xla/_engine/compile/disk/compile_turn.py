"""Let one of the processes that share a cache folder compile a program, while the others wait for its file.

The process that compiles holds a lock on a file, and the system releases the lock when the process dies, however it
dies. A process that has finished deletes the file before it releases the lock. So a process that gets the lock of a
file which is still there takes the turn of a dead process, and compiles in its place.
"""

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: each process compiles
    fcntl = None  # type: ignore[assignment]

FOLDER = "compiling"
# A process that is stopped, or whose compiler hangs, keeps its lock. After this many seconds others compile, too.
_LONGEST = 900.0
_SHORTEST_SLEEP, _LONGEST_SLEEP = 0.002, 0.05


@contextlib.contextmanager
def held(path: Path, warn: Callable[[str], None], written: Iterable[Path] = ()) -> Iterator[bool]:
    """Hold the turn to compile that the file `path` is for, or wait until another process has finished its turn.

    Gives whether another process has finished a turn: a file of `written` is there, or this process has waited. A
    process that has waited has no turn: a program that compiles quickly is not kept, and the processes would compile
    it one after the other. Where the file system has no locks, `warn` is told so, and there are no turns.
    """
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            file = stack.enter_context(open(path, "ab", buffering=0))
        except OSError:  # reported when the executable is written
            yield False
            return
        try:
            is_locked = _locked(file)
        except OSError as error:
            warn(f"Processes cannot wait for each other's programs in {path.parent.parent}: {error}")
            yield False
            return
        if not is_locked or not _is_at(file, path):
            yield True
            return
        try:
            yield any(each.exists() for each in written)
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
            if fcntl is not None:  # a process that was forked meanwhile has the file open, so closing it is not enough
                fcntl.flock(file, fcntl.LOCK_UN)


def _locked(file: io.FileIO) -> bool:
    """Lock a file as soon as no other process has it locked; return False if that takes too long."""
    if fcntl is None:
        return True
    end = time.monotonic() + _LONGEST
    sleep = _SHORTEST_SLEEP
    while time.monotonic() < end:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(sleep)
            sleep = min(2 * sleep, _LONGEST_SLEEP)
    return False


def _is_at(file: io.FileIO, path: Path) -> bool:
    """Return whether the open file is still the one at `path`: its last owner has not finished."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
