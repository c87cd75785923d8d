"""Read a few fields of protocol buffer messages, by field number."""

from collections.abc import Iterator
from typing import Any

Message = dict[int, list[Any]]


def text_of(message: Message, field: int) -> str:
    """Return the first text of a field; empty if there is none."""
    return message[field][0].decode() if field in message else ""


def number_of(message: Message, field: int) -> int:
    """Return the first number of a field; 0 if there is none."""
    return int(message[field][0]) if field in message else 0


def parsed(data: bytes) -> Message:
    """Parse a message into fields by number: integers, or bytes. Raises `ValueError` for other data."""
    message: Message = {}
    try:
        for field, value in _fields(memoryview(data)):
            message.setdefault(field, []).append(value)
    except IndexError:
        raise ValueError("not a message: it ends within a number") from None
    return message


def _fields(data: memoryview) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        field, kind = key >> 3, key & 7
        if kind == 0:
            number, position = _varint(data, position)
            yield field, number
            continue
        if kind == 2:
            size, position = _varint(data, position)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"not a message: a field of the unknown kind {kind}")
        end = position + size
        if end > len(data):
            raise ValueError(f"not a message: it ends within field {field}")
        yield field, bytes(data[position:end])
        position = end


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, position
