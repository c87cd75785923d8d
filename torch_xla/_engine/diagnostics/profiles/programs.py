"""The programs in a profile: which operator and which line each of their operations comes from.

A profile is a file of protocol buffers, and keeps the HLO of every program that ran. JAX reads the events of such a
file but not these, so the few fields that are wanted are read here, by their numbers in `xplane.proto` and `hlo.proto`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...metrics.lines import Line

Message = dict[int, list[Any]]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an operation of a program comes from."""

    name: str  # scopes and operator, "forward/encoder/aten::linear"; empty if it is XLA's own
    line: Line | None
    opcode: str


def origins(content: bytes) -> dict[str, dict[str, Origin]]:
    """For each program in a profile, by its name "jit_program(7)": the origin of each operation, by its name."""
    found: dict[str, dict[str, Origin]] = {}
    for plane in _parsed(content).get(1, ()):
        fields = _parsed(plane)
        if _text(fields, 2) != "/host:metadata":
            continue
        for entry in fields.get(4, ()):
            program = _parsed(_parsed(entry)[2][0])
            for stat in program.get(5, ()):
                for proto in _parsed(stat).get(6, ()):
                    found[_text(program, 2)] = _origins_of_module(_parsed(_parsed(proto)[1][0]))
    return found


def _origins_of_module(module: Message) -> dict[str, Origin]:
    lines = _lines(_parsed(module[17][0])) if 17 in module else {}
    found: dict[str, Origin] = {}
    for computation in module.get(3, ()):
        for each in _parsed(computation).get(2, ()):
            instruction = _parsed(each)
            metadata = _parsed(instruction[7][0]) if 7 in instruction else {}
            line = lines.get(_number(metadata, 15))
            if line is None and _number(metadata, 4):
                line = (_text(metadata, 3), _number(metadata, 4), "")
            found[_text(instruction, 1)] = Origin(_operator(_text(metadata, 2)), line, _text(instruction, 2))
    return found


def _operator(name: str) -> str:
    """ "jit(program)/forward/aten::relu/jit(relu)/max" → "forward/aten::relu": up to the operator."""
    parts = name.split("/")
    last = max((index for index, part in enumerate(parts) if "::" in part), default=-1)
    return "/".join(parts[1 : last + 1])


def _lines(index: Message) -> dict[int, Line]:
    """The lines of the frames that programs refer to by number, from 1 on."""
    files, functions = ([name.decode() for name in index.get(field, ())] for field in (1, 2))
    places: list[Line] = []
    for each in index.get(3, ()):
        place = _parsed(each)
        places.append((files[_number(place, 1) - 1], _number(place, 3), functions[_number(place, 2) - 1]))
    frames = [_number(_parsed(frame), 1) for frame in index.get(4, ())]
    return {number: places[place - 1] for number, place in enumerate(frames, 1) if place}


def _text(message: Message, field: int) -> str:
    return message[field][0].decode() if field in message else ""


def _number(message: Message, field: int) -> int:
    return int(message[field][0]) if field in message else 0


def _parsed(data: bytes) -> Message:
    """The fields of a message, by number: integers, or bytes for what has a length."""
    message: Message = {}
    for field, value in _fields(memoryview(data)):
        message.setdefault(field, []).append(value)
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
            raise ValueError(f"not a profile: a field of the unknown kind {kind}")
        yield field, bytes(data[position : position + size])
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, position
