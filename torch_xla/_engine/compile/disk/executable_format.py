"""The format of an executable on disk, and the checks that a file must pass before it is loaded.

A file is a line that names the format, a checksum of the rest, a signature of that checksum (`key`), a header in JSON,
and XLA's serialised executable, compressed. The header says what was compiled for what, in plain data. Reading it
executes nothing; but an executable is machine code, so a file or folder that others may write to is refused.
"""

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

MAGIC = b"torch_xla executable 5\n"
# A header is a line; one that is longer belongs to no file of ours.
_LONGEST_HEADER = 64 << 20
# Bytes of an executable before compression, beyond which a file is not believed: what deflates to it is small.
_LARGEST = 4 << 30

# Size and name of the dtype of each value.
Described = tuple[tuple[tuple[int, ...], str], ...]


class Unreadable(Exception):
    """A file that is no executable of ours: cut off, altered, or written in another format."""


class Refused(Exception):
    """A file or folder that another user may have written."""


class Foreign(Refused):
    """A whole file that was signed with another key than this user's."""


@dataclass(frozen=True, slots=True)
class Header:
    """The description of an executable in its file: program, environment, inputs and outputs."""

    program: str
    environment: dict[str, str]
    seconds: float  # what compiling it took
    bytes: int  # before compression
    name: str
    inputs: Described
    outputs: Described
    divided: tuple[
        tuple[tuple[int, ...], ...], ...
    ]  # the axes that divide each output, by dimension; of one device: ()
    weak: tuple[int, ...]  # which of the outputs have a weak type
    donated: tuple[int, ...]
    start: str = ""  # of the processes that have compiled it together; of one that did so alone: empty


def joined(header: Header, executable: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """Return a whole file; `sign` gives the signature of its checksum."""
    content = {field.name: getattr(header, field.name) for field in fields(header)}
    return _signed(json.dumps(content).encode() + b"\n" + zlib.compress(executable, 1), sign)


def signed_anew(data: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """Return the same file with another signature. Raises `Unreadable` if it is damaged."""
    _, rest, _ = _intact(data)
    return _signed(rest, sign)


def split(data: bytes, verify: Callable[[bytes, bytes], None] | None = None) -> tuple[Header, bytes]:
    """Return the header and the executable of a whole file. Raises `Unreadable` if it is damaged.

    Where it is given, `verify` is called with the checksum and its signature, and raises if that does not fit.
    """
    checksum, rest, signature = _intact(data)
    if verify is not None:
        verify(checksum, signature)
    text, _, body = rest.partition(b"\n")
    header = _header(text)
    inflate = zlib.decompressobj()
    try:
        executable = inflate.decompress(body, max_length=header.bytes + 1)
    except zlib.error as error:
        raise Unreadable(str(error)) from error
    if len(executable) != header.bytes or not inflate.eof:
        raise Unreadable("the executable has another length than the header says")
    return header, executable


def _signed(rest: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    checksum = hashlib.sha256(rest).hexdigest().encode()
    return MAGIC + checksum + b"\n" + sign(checksum) + b"\n" + rest


def _intact(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the checksum, what it is of, and its signature."""
    magic, _, rest = data.partition(b"\n")
    checksum, _, rest = rest.partition(b"\n")
    signature, _, rest = rest.partition(b"\n")
    if magic + b"\n" != MAGIC:
        raise Unreadable("it does not begin as such a file does")
    if hashlib.sha256(rest).hexdigest().encode() != checksum:
        raise Unreadable("the checksum does not fit")
    return checksum, rest, signature


def header_of(path: Path) -> Header:
    """Return the header of a file. Raises `OSError`, `Refused` or `Unreadable`; the rest of the file is not looked
    at.
    """
    with _opened(path) as file:
        magic, _, _, text = (file.readline(most) for most in (len(MAGIC), 80, 80, _LONGEST_HEADER))
    if magic != MAGIC:
        raise Unreadable("it does not begin as such a file does")
    return _header(text)


def header_in(data: bytes) -> Header:
    """Return the header of a whole file, whose executable is not looked at. Raises `Unreadable` if it is damaged."""
    return _header(_intact(data)[1].partition(b"\n")[0])


def contents(path: Path, most: int = _LARGEST) -> bytes:
    """Return the contents of a file. Raises `OSError`, or `Refused` or `Unreadable` if they cannot be trusted."""
    with _opened(path) as file:
        data: bytes = file.read(most + 1)
    if len(data) > most:
        raise Unreadable(f"it has more than {most} bytes")
    return data


def refuse_others(path: Path, status: os.stat_result) -> None:
    """Raise `Refused` if anyone but this user and the administrator may have written the file or folder `path`."""
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid not in (0, os.geteuid()):
        raise Refused(f"{path} belongs to another user (number {status.st_uid})")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused(f"other users may write to {path} (`chmod go-w` ends this)")


def _opened(path: Path) -> Any:
    # Take the status of the opened file, because the path may be renamed meanwhile. A file object may be closed twice,
    # a descriptor must not: an interrupt between the two must not become an error about a closed descriptor.
    try:
        file = open(path, "rb", opener=_without_waiting)
    except IsADirectoryError as error:
        raise Unreadable("it is no regular file") from error
    try:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("it is no regular file")
        refuse_others(path, status)
    except BaseException:
        file.close()
        raise
    return file


def _without_waiting(path: str, flags: int) -> int:
    """Open the file, which may be a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _header(text: bytes) -> Header:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the header is not JSON: {error}") from error
    if not isinstance(found, dict) or set(found) != {field.name for field in fields(Header)}:
        raise Unreadable("the header has other fields")
    environment, seconds, size = found["environment"], found["seconds"], found["bytes"]
    sound = (
        isinstance(environment, dict)
        and all(isinstance(value, str) for value in environment.values())
        and isinstance(seconds, float | int)
        and 0 <= seconds < 1e9
        and isinstance(size, int)
        and 0 <= size <= _LARGEST
        and isinstance(found["program"], str)
        and isinstance(found["name"], str)
        and isinstance(found["start"], str)
    )
    if not sound:
        raise Unreadable("the header holds what it should not")
    return Header(
        found["program"],
        environment,
        float(seconds),
        size,
        found["name"],
        _described(found["inputs"]),
        _described(found["outputs"]),
        _divided(found["divided"]),
        _integers(found["weak"]),
        _integers(found["donated"]),
        found["start"],
    )


def _described(found: object) -> Described:
    if not isinstance(found, list):
        raise Unreadable("the header does not say what the executable takes and gives")
    values = []
    for each in found:
        if not (isinstance(each, list) and len(each) == 2 and isinstance(each[1], str)):
            raise Unreadable("the header does not say what the executable takes and gives")
        values.append((_integers(each[0]), each[1]))
    return tuple(values)


def _divided(found: object) -> tuple[tuple[tuple[int, ...], ...], ...]:
    if not (isinstance(found, list) and all(isinstance(each, list) for each in found)):
        raise Unreadable("the header does not say how the executable divides what it gives")
    return tuple(tuple(map(_integers, each)) for each in found)


def _integers(found: object) -> tuple[int, ...]:
    if not (isinstance(found, list) and all(type(each) is int and each >= 0 for each in found)):
        raise Unreadable("the header holds something else where it should hold whole numbers")
    return tuple(found)
