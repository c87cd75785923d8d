"""Serialised HLO modules (`HloModuleProto`): give them another name, and show them as JSON."""

import json
from collections.abc import Sequence
from typing import Any

from ..planning.protobuf_reader import Message, number_of, parsed, text_of

# Field numbers of XLA's messages.
_MODULE_NAME = 1
_LENGTH_DELIMITED = 2


def renamed(proto: bytes, name: str) -> bytes:
    """Return a module under another name."""
    text = name.encode()
    # Of a field that occurs twice, a parser takes the last.
    return proto + bytes([_MODULE_NAME << 3 | _LENGTH_DELIMITED]) + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def json_of(proto: bytes) -> str:
    """Return a module as JSON, as protobuf writes it: names in camel case, 64-bit numbers as text, no defaults."""
    module = parsed(proto)
    shown = {
        "name": module[_MODULE_NAME][-1].decode() if _MODULE_NAME in module else "",
        "entryComputationName": text_of(module, 2),
        "entryComputationId": str(number_of(module, 6)),
        "computations": [_computation(parsed(each)) for each in module.get(3, [])],
        "frontendAttributes": _attributes(module, 19),
    }
    return json.dumps(_without_defaults(shown), indent=1)


def _computation(message: Message) -> dict[str, Sequence[object]]:
    return {
        "name": text_of(message, 1),
        "id": str(number_of(message, 5)),
        "rootId": str(number_of(message, 6)),
        "instructions": [_instruction(parsed(each)) for each in message.get(2, [])],
    }


def _instruction(message: Message) -> dict[str, object]:
    metadata = parsed(message[7][0]) if 7 in message else {}
    return {
        "name": text_of(message, 1),
        "opcode": text_of(message, 2),
        "id": str(number_of(message, 35)),
        "parameterNumber": str(number_of(message, 9)),
        "operandIds": [str(number) for each in message.get(36, []) for number in _numbers(each)],
        "customCallTarget": text_of(message, 28),
        "metadata": {
            "opType": text_of(metadata, 1),
            "opName": text_of(metadata, 2),
            "sourceFile": text_of(metadata, 3),
            "sourceLine": number_of(metadata, 4),
            "stackFrameId": number_of(metadata, 15),
        },
        "frontendAttributes": _attributes(message, 68),
    }


def _attributes(message: Message, field: int) -> dict[str, Any]:
    """Return a map of texts: a message whose field 1 holds pairs."""
    pairs = [parsed(pair) for each in message.get(field, []) for pair in parsed(each).get(1, [])]
    return {"map": {text_of(pair, 1): text_of(pair, 2) for pair in pairs}}


def _numbers(value: int | bytes) -> list[int]:
    """Return the numbers of a repeated field: one, or several in a row."""
    if isinstance(value, int):
        return [value]
    found, number, shift = [], 0, 0
    for byte in value:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(number)
            number = shift = 0
    return found


def _without_defaults(value: object) -> object:
    if isinstance(value, dict):
        # The texts of a map are data, and no defaults.
        shown = {name: part if name == "map" else _without_defaults(part) for name, part in value.items()}
        return {name: part for name, part in shown.items() if part not in ("", "0", 0, [], {})}
    return [_without_defaults(part) for part in value] if isinstance(value, list) else value
