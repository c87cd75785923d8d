"""The limit of a folder: its least recently used files are deleted before it has more bytes than that."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from ... import config
from ...atomic import lock

# How many files are written between two looks at the size of the folder, which other processes fill too.
_LOOKS_EVERY = 32
# A file unfinished for this many seconds was left by a process that was killed.
_ABANDONED = 3600.0

_lock = lock()


@dataclass(slots=True)
class _Filled:
    """How full a folder is: at the last look, and by what was written since."""

    place: Path | None = None
    written: int = 0  # files
    size: int = 0


_filled = _Filled()


def size_of(place: Path) -> int:
    """Return the bytes that the files of a folder take."""
    return sum(size for _, size, _ in _files(place))


def _files(place: Path) -> list[tuple[float, int, str]]:
    found = []
    # A folder has tens of thousands of files: each is asked for its state once, and none is made a `Path`.
    with os.scandir(place) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_file():  # not the folder of turns
                    status = entry.stat()
                    found.append((status.st_mtime, status.st_size, entry.name))
    return sorted(found)


def make_room(place: Path, needed: int) -> bool:
    """Delete files until another `needed` bytes fit within the limit; return False if they never can."""
    limit = config.persistent_cache_bytes()
    if needed > limit:
        return False
    with _lock:
        is_another = place != _filled.place
        _filled.place = place
        _filled.written += 1
        _filled.size += needed
        if is_another or _filled.written % _LOOKS_EVERY == 0 or _filled.size > limit:
            # A little more than what is needed, so that a full folder is not looked at for each file.
            _filled.size = needed + shrink(place, limit - needed, min(limit - needed, limit * 9 // 10))
    return True


def shrink(place: Path, limit: int, target: int | None = None) -> int:
    """Delete the least recently used files of a folder larger than `limit` bytes until it has `target` bytes left.

    Return the bytes that are left. Files being written stay; abandoned half-written files do not.
    """
    files = _files(place)
    size = sum(each for _, each, _ in files)
    now = time.time()
    remaining = []
    for modified, each, name in files:
        if not name.startswith("."):
            remaining.append((each, name))
        elif name.endswith(".part") and now - modified > _ABANDONED:
            delete(place / name)
            size -= each
    if size > limit:
        for each, name in remaining:
            if size <= (limit if target is None else target):
                break
            delete(place / name)
            size -= each
    return size


def delete(path: Path) -> None:
    """Delete a file, unless it is gone or must stay."""
    with contextlib.suppress(OSError):
        path.unlink()
