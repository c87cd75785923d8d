"""Load the executables that the same command used last time, before they are needed.

XLA takes almost half a second to load the executable of a training step, and lets other threads run meanwhile. So from
the first use of a device, a thread loads the executables that the last process with this command line used, in that
order, while the model is built and the first step is recorded.
"""

import contextlib
import functools
import hashlib
import json
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

from ...atomic import lock
from . import cache_folder, executable_format
from .executable_format import Refused, Unreadable

SUFFIX = ".used"
# Most executables that count as the start of a program.
MOST = 64
_LONGEST = 1 << 16
# A note may not lead anywhere else.
_NAME = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}\.xla")

_lock = lock()
# By the file's name and the target.
_coming: dict[tuple[str, object], "Future[Any]"] = {}
_used: list[str] = []


@functools.cache
def _note() -> str:
    """Return the name of the file that lists this command's executables; empty if the command is not repeatable."""
    if not sys.argv or not sys.argv[0]:
        return ""
    words = json.dumps([sys.argv[0], *sys.orig_argv[1:]])
    return f"{hashlib.sha256(words.encode()).hexdigest()[:32]}{SUFFIX}"


def begin(place: Path, target: object, load: Callable[[Path, Any], Any]) -> None:
    """Start to `load` the files in `place` that this command used the last time, each for `target`."""
    jobs: list[tuple[str, Future[object]]] = [(name, Future()) for name in _names(place)]
    if jobs:
        with _lock:
            _coming.update({(name, target): future for name, future in jobs})
        threading.Thread(target=_load_all, args=(place, target, load, jobs), name="torch_xla loads").start()


def _names(place: Path) -> list[str]:
    """Return the files that this command used the last time; none if the note is damaged, or says what no file is
    called.
    """
    if not _note():
        return []
    try:
        found = json.loads(executable_format.contents(place / _note(), _LONGEST))
    except (OSError, ValueError, RecursionError, Refused, Unreadable):
        return []
    if not isinstance(found, list):
        return []
    return [name for name in found[:MOST] if isinstance(name, str) and _NAME.fullmatch(name)]


def _load_all(
    place: Path, target: object, load: Callable[[Path, Any], Any], jobs: list[tuple[str, "Future[Any]"]]
) -> None:
    for name, future in jobs:
        if not threading.main_thread().is_alive():
            future.cancel()  # the program has ended, and Python waits for this thread
        elif future.set_running_or_notify_cancel():
            try:
                future.set_result(load(place / name, target))
            except Exception as error:  # `take` raises it
                future.set_exception(error)


def take(name: str, target: object) -> Any:
    """Return the executable of a file, waiting if it is being loaded; `None` if it was not begun, or failed."""
    with _lock:
        future = _coming.pop((name, target), None)
    if future is not None:
        with contextlib.suppress(Exception, CancelledError):  # the caller loads the file itself and gets the error
            return future.result()
    return None


def note(place: Path, name: str) -> None:
    """Note that this command used the file `name`."""
    with _lock:
        if name in _used or len(_used) >= MOST or not _note():
            return
        _used.append(name)
        text = json.dumps(_used)
    with contextlib.suppress(OSError, Refused):
        if not cache_folder.is_read_only() and name not in _names(place):
            cache_folder.write(place / _note(), text.encode())
