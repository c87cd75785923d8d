"""Executables on disk, found by another process by what their program computes: it neither lowers nor compiles it.

A file holds one executable: a header in JSON (what it was compiled for, a checksum), then XLA's serialised executable.
Files are written aside and renamed, so readers and writers in any number of processes never see half of one; whatever
cannot be read is deleted and compiled again. The least recently used leave when the folder exceeds its limit.
"""

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from .. import config, metrics
from ..private import jax as private
from . import fingerprint, foresight

MAGIC = b"torch_xla executable 1\n"
SUFFIX = ".xla"
# Reading a file costs about as much as compiling what compiles in less.
WORTH_KEEPING_SECONDS = 0.05
# How many files are written between two looks at the size of the folder.
_LOOKS_EVERY = 32

_written = 0
_warned: set[str] = set()
_misses: "deque[tuple[str, str]]" = deque(maxlen=256)


@dataclass(frozen=True, slots=True)
class Stored:
    """An executable read from disk."""

    executable: Any
    seconds: float  # what compiling it took


class _Unreadable(Exception):
    """A file that is no executable of ours: cut off, altered, or written in another format."""


@dataclass(slots=True)
class _Chosen:
    """What the program itself says goes before the settings."""

    path: str | None = None
    read_only: bool = False


_chosen = _Chosen()


def choose(path: str | None, read_only: bool = False) -> None:
    """Keeps executables in `path` from now on, none if it is empty; `None` leaves it to the settings again."""
    _chosen.path, _chosen.read_only = path, read_only


def folder() -> Path | None:
    """Where executables are kept; `None` if they are not."""
    path = config.persistent_cache_path() if _chosen.path is None else _chosen.path
    return Path(path).expanduser() if path else None


def _is_read_only() -> bool:
    return config.persistent_cache_read_only() if _chosen.path is None else _chosen.read_only


def find(program: str, device: jax.Device) -> Stored | None:
    """The executable of a program (by its fingerprint) for `device`, if one was kept."""
    place = folder()
    if place is None:
        return None
    environment = fingerprint.environment(device)
    path = place / _name(program, environment)
    try:
        stored = foresight.take(path.name, device) or _stored(path, device)
    except FileNotFoundError:
        _miss(program, _why_missing(place, program, environment))
        return None
    except OSError as error:
        _miss(program, f"{path} cannot be read: {error}")
        return None
    except Exception as error:  # a damaged executable may fail in any way inside XLA
        _miss(program, f"{path.name} was damaged ({type(error).__name__}: {str(error)[:200]}) and is compiled again")
        _delete(path)
        return None
    metrics.count("PersistentCacheHit")
    foresight.note(place, path.name, None if _is_read_only() else _write)
    with contextlib.suppress(OSError):
        os.utime(path)
    return stored


@functools.cache
def foresee(device: jax.Device) -> None:
    """Starts to read what this command used the last time."""
    place = folder()
    if place is not None:
        foresight.begin(place, device, _stored)


def _stored(path: Path, device: jax.Device) -> Stored:
    header, body = _read(path)
    return Stored(_load(body, header, device), header["seconds"])


def keep(
    program: str,
    device: jax.Device,
    executable: Any,
    seconds: float,
    arguments: int,
    results: int,
    program_seconds: float = 0.0,
) -> None:
    """Writes an executable that took `seconds` to compile; does nothing if it is not worth it or may not.

    It is worth it too if the program of which it is a stage took long enough, `program_seconds`.
    """
    place = folder()
    if place is None or _is_read_only() or max(seconds, program_seconds) < WORTH_KEEPING_SECONDS:
        return
    try:
        body = zlib.compress(serialize_executable.serialize(executable)[0], 1)
    except Exception as error:  # some plugins cannot serialise, some programs hold what cannot be
        _warn("serialise", f"A program of this backend cannot be kept on disk: {type(error).__name__}: {error}")
        return
    environment = fingerprint.environment(device)
    header = {
        "environment": environment,
        "program": program,
        "seconds": seconds,
        "arguments": arguments,
        "results": results,
    }
    path = place / _name(program, environment)
    try:
        _write(path, _joined(header, body))
    except OSError as error:
        _warn("write", f"Compiled programs cannot be kept in {place}: {error}")
        return
    metrics.count("PersistentCacheWrite")
    foresight.note(place, path.name, _write)
    _look_after(place)


def note_baked(program: str, device: jax.Device, indices: list[int]) -> None:
    """Keeps which numbers of a program must be baked in: known only once it was lowered, needed to find it again."""
    place = folder()
    if place is not None and not _is_read_only():
        with contextlib.suppress(OSError):
            _write(place / (_name(program, fingerprint.environment(device)) + ".numbers"), json.dumps(indices).encode())


def baked(program: str, device: jax.Device) -> list[int]:
    """The numbers noted by `note_baked`."""
    place = folder()
    if place is None:
        return []
    try:
        text = (place / (_name(program, fingerprint.environment(device)) + ".numbers")).read_text()
        return [int(index) for index in json.loads(text)]
    except (OSError, ValueError, TypeError):
        return []


def misses() -> list[tuple[str, str]]:
    """The latest programs that were not found on disk, and why, oldest first."""
    return list(_misses)


def headers(place: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every readable file of a folder with its header."""
    for path in sorted(place.glob(f"*{SUFFIX}")):
        with contextlib.suppress(OSError, _Unreadable, ValueError):
            yield path, _header_of(path)


def is_sound(data: bytes) -> bool:
    """Whether `data` is a whole file of ours."""
    try:
        _split(data)
    except (_Unreadable, ValueError, KeyError):
        return False
    return True


def adopt(place: Path, name: str, data: bytes) -> None:
    """Puts a file that came from elsewhere into a folder."""
    _write(place / name, data)


def size_of(place: Path) -> int:
    """The bytes that the files of a folder take."""
    return sum(size for _, size, _ in _files(place))


def _name(program: str, environment: dict[str, str]) -> str:
    text = json.dumps(environment, sort_keys=True)
    return f"{program}-{hashlib.sha256(text.encode()).hexdigest()[:16]}{SUFFIX}"


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    return _split(path.read_bytes())


def _joined(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode() + b"\n"
    return MAGIC + hashlib.sha256(text + body).hexdigest().encode() + b"\n" + text + body


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    magic, _, rest = data.partition(b"\n")
    checksum, _, rest = rest.partition(b"\n")
    header = _header(magic + b"\n", rest[: rest.find(b"\n")])
    if hashlib.sha256(rest).hexdigest().encode() != checksum:
        raise _Unreadable("the checksum does not fit")
    return header, rest[rest.find(b"\n") + 1 :]


def _header_of(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        magic, _, text = file.readline(), file.readline(), file.readline()
    return _header(magic, text)


def _header(magic: bytes, text: bytes) -> dict[str, Any]:
    if magic != MAGIC:
        raise _Unreadable("it does not begin as such a file does")
    found: dict[str, Any] = json.loads(text)
    return found


def _load(body: bytes, header: dict[str, Any], device: jax.Device) -> Any:
    arguments = jax.tree.structure(((0,) * header["arguments"], {}))
    results = jax.tree.structure((0,) * header["results"])
    load: Callable[..., Any] = serialize_executable.deserialize_and_load
    executable = zlib.decompress(body)
    if b"lapack_" in executable:
        private.prepare_linear_algebra()
    return load(executable, arguments, results, device.client, [device])


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(aside, path)
    except BaseException:
        _delete(Path(aside))
        raise


def _miss(program: str, reason: str) -> None:
    metrics.count("PersistentCacheMiss")
    _misses.append((program, reason))


def _why_missing(place: Path, program: str, environment: dict[str, str]) -> str:
    best: list[str] | None = None
    for path in place.glob(f"{program}-*{SUFFIX}"):
        with contextlib.suppress(OSError, _Unreadable, ValueError):
            kept = _header_of(path)["environment"]
            differs = [
                f"{name} {kept.get(name)!r} → {environment.get(name)!r}"
                for name in sorted(kept.keys() | environment.keys())
                if kept.get(name) != environment.get(name)
            ]
            if best is None or len(differs) < len(best):
                best = differs
    return "never compiled here" if best is None else f"compiled under another environment: {'; '.join(best)}"


def _files(place: Path) -> list[tuple[float, int, Path]]:
    found = []
    for path in place.iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    return sorted(found)


def _look_after(place: Path) -> None:
    """Now and then: deletes the least recently used files beyond the limit."""
    global _written
    _written += 1
    if _written % _LOOKS_EVERY != 1:
        return
    shrink(place, config.persistent_cache_bytes())


def shrink(place: Path, limit: int) -> None:
    """Deletes the least recently used files of a folder until it takes at most `limit` bytes."""
    files = [file for file in _files(place) if not file[2].name.startswith(".")]  # what somebody is writing stays
    size = sum(each for _, each, _ in files)
    for _, each, path in files:
        if size <= limit:
            return
        _delete(path)
        size -= each


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _warn(kind: str, text: str) -> None:
    metrics.count("PersistentCacheFailure")
    if kind not in _warned:
        _warned.add(kind)
        advice = "They are compiled in every process. XLA_PERSISTENT_CACHE_PATH= (empty) ends this."
        warnings.warn(f"{text}. {advice}", stacklevel=2)
