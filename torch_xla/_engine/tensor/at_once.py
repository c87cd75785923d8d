"""An operation that runs when it is called: by the schedule of a tape that held nothing else, found the first time.

From the second time on there is no tape: the operands' buffers go into the program, and what comes out into values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import config, dtypes, metrics
from ..compile.program import Program
from ..execute import executor
from ..graph.tape import Value
from ..metrics import events
from ..metrics.events import Cause
from . import census, sync
from .device import Device
from .generator import keys_of
from .sync import Schedule, lines_of

_graph_size = metrics.metric("TensorsGraphSize", metrics.Unit.SCALAR)


@dataclass(frozen=True, slots=True)
class Shortcut:
    """How an operation runs without a tape."""

    schedule: Schedule
    program: Program
    inputs: tuple[int, ...]  # of the values that the operation reads, the one for each input of the program
    results: tuple[int, ...]  # of the program's outputs, the one for each tensor that the operation makes or writes to


class Call(NamedTuple):
    """A call that needs no tape, if its shortcut is known."""

    key: Any
    values: list[Value]  # what it reads, each once
    shortcut: Shortcut | None


def look_up(operation: Any, operands: Sequence[Any], device: Device) -> Call | None:
    """A call of `operation`, which knows the operands' geometry, on `operands`: each a value or (value, view).

    `None` if it needs a tape: something is recorded or not computed yet, or somebody wants to see each step. The caller
    holds the lock until the call has run.
    """
    if device.tape.code or events.closely or events.guarded or sync.inspect is not None:
        return None
    key = [operation, dtypes.device_mode()]
    places: dict[Value, int] = {}
    for operand in operands:
        if operand.__class__ is tuple:
            value: Value = operand[0]
            key.append(value.spec)  # the memory around the view
        else:
            value = operand
        if value.buffer is None or value.device is not device:
            return None
        key.append(places.setdefault(value, len(places)))
    found = tuple(key)
    return Call(found, list(places), sync.shortcuts.get(found))


def run(shortcut: Shortcut, values: list[Value], numbers: Sequence[float | int], draws: list[int]) -> list[Value]:
    """Starts the program; returns the values for the tensors that the operation makes or writes to, in order."""
    schedule, program = shortcut.schedule, shortcut.program
    buffers = [values[place].buffer for place in shortcut.inputs]
    keys = keys_of(draws) if draws else None
    lines = lambda: lines_of(schedule.cut, schedule.lines)  # noqa: E731
    outputs = executor.run(program, buffers, numbers, keys, Cause.SYNC, lines)
    device, graph = values[0].device, program.graph
    made: list[Value] = []
    for slot, buffer, line in zip(graph.outputs, outputs, schedule.output_lines, strict=True):
        value = Value(graph.specs[slot], device, None, -1)
        value.buffer = buffer
        value.line = line
        made.append(value)
    _graph_size.add(len(graph.operations))
    census.values.value += len(made)
    census.buffers.value += len(made)
    for counter, count in schedule.counts:
        counter.value += count
    if config.sync_wait():
        executor.wait()
    return [made[place] for place in shortcut.results]


def learn(call: Call, results: Sequence[int], schedule: Schedule) -> None:
    """Keeps the `schedule` of a tape that held this call alone, and whose slots `results` its tensors show now.

    Not if it needs more than the call's operands, or leaves a tensor what it had.
    """
    program, part = schedule.program, schedule.cut
    slots = [value.slot for value in call.values]
    if program is None or program.donated:
        return  # the next call's operands are somebody's
    if not set(part.inputs) <= set(slots) or not set(results) <= set(part.outputs):
        return
    inputs, outputs = map(slots.index, part.inputs), map(part.outputs.index, results)
    sync.shortcuts[call.key] = Shortcut(schedule, program, tuple(inputs), tuple(outputs))
    while len(sync.shortcuts) > 4 * config.compilation_cache_size():
        sync.shortcuts.popitem(last=False)
