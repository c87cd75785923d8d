"""The folder of executables: where it is, and how files come into it and out of it.

Files are written under another name and renamed, so no process ever reads half a file. A folder has a limit
(`folder_limit`), and may have a store behind it that other machines have too (`remote_store`).
"""

import contextlib
import functools
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ... import config, metrics
from . import executable_format, folder_limit, remote_store, signing_key
from .executable_format import Header, Refused, Unreadable
from .folder_limit import size_of as size_of
from .folder_listing import Listing

SUFFIX = ".xla"
# Of an executable, and of the note which numbers of its program must be constants.
SUFFIXES = (SUFFIX, f"{SUFFIX}.numbers")
_IS_AN_ADDRESS = "://"
# The folder within a folder that has the executables for machines that are not here.
TOPOLOGIES = "topologies"

# The end of warnings about executables that are not kept.
_NO_STORE = "Each machine compiles what its folder does not have. A folder as XLA_PERSISTENT_CACHE_PATH ends this."
_NOT_KEPT = "They are compiled in every process. XLA_PERSISTENT_CACHE_PATH= (empty) ends this."

_warned: set[str] = set()  # kinds
listing = Listing()


@dataclass(slots=True)
class _Chosen:
    """The folder that the program chose itself, which overrides the settings."""

    path: str | None = None
    read_only: bool = False


_chosen = _Chosen()


def choose(path: str | None, read_only: bool = False) -> None:
    """Keep executables in `path` from now on, none if it is empty; with `None`, follow the settings again."""
    _chosen.path, _chosen.read_only = path, read_only


def _path() -> str:
    return config.persistent_cache_path() if _chosen.path is None else _chosen.path


def store_behind() -> remote_store.RemoteStore | None:
    """Return the store behind the folder; `None` where executables are kept in a folder alone."""
    path = _path()
    warn_of_it = functools.partial(warn, "store", advice=_NO_STORE)
    return remote_store.at(path, warn_of_it) if _IS_AN_ADDRESS in path else None


def folder() -> Path | None:
    """Return the folder of executables of this machine; `None` if they are not kept."""
    path = _path()
    if _IS_AN_ADDRESS in path:
        own = config.own_cache_folder()
        return Path(own, remote_store.folder_of(path)) if own else None
    if not path:
        return None
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        warn("folder", f"Compiled programs cannot be kept in {path}: {error}")
        return None


def is_read_only() -> bool:
    """Return whether executables are only read from the folder."""
    return config.persistent_cache_read_only() if _chosen.path is None else _chosen.read_only


def bring(place: Path, name: str) -> None:
    """Copy a file that is not in the folder from the store behind it, if it is there and this user signed it."""
    store = store_behind()
    data = None if store is None or (place / name).exists() else store.fetch(name)
    if store is None or data is None:
        return
    if name.endswith(SUFFIX):
        executable_format.split(data, functools.partial(signing_key.verify, f"{store.address}/{name}"))
    write(place / name, data)


def keep(path: Path, data: bytes) -> bool:
    """Write a file to the folder and to the store behind it."""
    is_there = write(path, data)
    store = store_behind()
    if store is not None and path.parent == folder():
        store.put(path.name, data)
    return is_there


def write(path: Path, data: bytes) -> bool:
    """Write `data` to `path` atomically; do nothing if the folder's limit leaves no room for it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    executable_format.refuse_others(path.parent, path.parent.stat())
    if not folder_limit.make_room(path.parent, len(data)):
        return False
    is_listed = listing.is_current(path.parent)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(aside, path)
    except BaseException:
        folder_limit.delete(Path(aside))
        raise
    if is_listed:
        listing.add(path)
    return True


def headers(place: Path) -> Iterator[tuple[Path, Header]]:
    """Yield every readable file of a folder with its header."""
    for path in sorted(place.glob(f"*{SUFFIX}")):
        with contextlib.suppress(OSError, Refused, Unreadable):
            yield path, executable_format.header_of(path)


def adopt(place: Path, name: str, data: bytes) -> None:
    """Put a file from elsewhere into a folder; an executable gets this user's signature.

    Raises `Unreadable` if an executable is damaged.
    """
    if name.endswith(SUFFIX):
        executable_format.split(data)
        data = executable_format.signed_anew(data, signing_key.signature)
    write(place / name, data)


def clear(place: Path) -> None:
    """Delete every file of a folder, and those for topologies."""
    for each in (place, place / TOPOLOGIES):
        if each.is_dir():
            folder_limit.shrink(each, 0)


def warn(kind: str, text: str, advice: str = _NOT_KEPT) -> None:
    """Count a failure, and warn of the first one of its kind."""
    metrics.count("PersistentCacheFailure")
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(f"{text}. {advice}", stacklevel=2)
