"""Messages of protocol buffers, of which only a few fields are wanted: read by the numbers of these."""

from collections.abc import Iterator
from typing import Any

Message = dict[int, list[Any]]


def text_of(message: Message, field: int) -> str:
    """The first text of a field; empty if there is none."""
    return message[field][0].decode() if field in message else ""


def number_of(message: Message, field: int) -> int:
    """The first number of a field; 0 if there is none."""
    return int(message[field][0]) if field in message else 0


def parsed(data: bytes) -> Message:
    """The fields of a message, by number: integers, or bytes for what has a length. `ValueError` for what is none."""
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
