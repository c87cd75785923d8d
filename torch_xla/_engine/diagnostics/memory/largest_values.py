"""The largest values on the devices, by the user's line that made them."""

from dataclasses import dataclass, field
from typing import Any

from ... import imported_objects
from ...ir.tape import Value
from ...metrics.user_lines import Line
from ...tensor.variable_names import name_buffers


@dataclass(slots=True)
class Holding:
    """The living buffers that one line made."""

    line: Line | None  # None: not known, for instance from before the history was kept
    count: int = 0
    bytes: int = 0
    largest: Value | None = None
    names: list[str] = field(default_factory=list)  # of some of them, as far as variables lead to them

    @property
    def shape(self) -> str:
        """Size and dtype of the largest."""
        if self.largest is None:
            return ""
        spec = self.largest.spec
        return f"{list(spec.size)} {str(spec.dtype).removeprefix('torch.')}"


def holdings(most: int = 15) -> list[Holding]:
    """Return the lines whose buffers take most memory, the largest first."""
    found: dict[Any, Holding] = {}
    buffers: dict[int, tuple[Any, Holding]] = {}
    for value in _values():
        buffer = value.buffer
        if id(buffer) in buffers or buffer.is_deleted():
            continue
        line: Line | None = getattr(value, "line", None)
        holding = found.setdefault(line, Holding(line))
        buffers[id(buffer)] = (buffer, holding)
        holding.count += 1
        holding.bytes += buffer.nbytes
        if holding.largest is None or buffer.nbytes > holding.largest.buffer.nbytes:
            holding.largest = value
    chosen = sorted(found.values(), key=lambda holding: -holding.bytes)[:most]
    _name(chosen, list(buffers.values()))
    return chosen


def _values() -> list[Value]:
    return [thing for thing in imported_objects.alive() if issubclass(type(thing), Value) and thing.buffer is not None]


def _name(chosen: list[Holding], buffers: list[tuple[Any, Holding]]) -> None:
    wanted = [(buffer, holding) for buffer, holding in buffers if any(holding is each for each in chosen)]
    wanted.sort(key=lambda entry: -entry[0].nbytes)  # the largest are named first
    for name, (_, holding) in zip(name_buffers([buffer for buffer, _ in wanted]), wanted, strict=True):
        if name:
            holding.names.append(name)
