"""An operation that runs when it is called: by the schedule of a tape that held nothing else, found the first time.

From the second time on there is no tape: the operands' buffers go into the program, and what comes out into values.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from sys import getrefcount
from typing import Any, NamedTuple

from .. import config, dtypes, metrics
from ..compile.program import Program
from ..execute import executor
from ..graph.spec import spec_of
from ..graph.tape import Value
from ..metrics import events
from ..metrics.events import Cause
from . import census, sync
from .device import Device
from .generator import keys_of
from .sync import Schedule, lines_of

_graph_size = metrics.metric("TensorsGraphSize", metrics.Unit.SCALAR)

# What a value counts that only a list holds.
_LISTED = [getrefcount(values[0]) for values in ([Value(spec_of((), (), None), None, None, 0)],)][0]


@dataclass(frozen=True, slots=True)
class Shortcut:
    """How an operation runs without a tape."""

    schedule: Schedule
    program: Program
    inputs: tuple[int, ...]  # of the values that the operation reads, the one for each input of the program
    results: tuple[int, ...]  # of the program's outputs, the one for each tensor that the operation makes or writes to
    gives: tuple[int, ...]  # of the values that the operation reads, those whose buffers the program takes

    def results_on(self, device: Device) -> tuple[list[Value], list[Value]]:
        """Values for the program's outputs, and those of them for each tensor that the operation makes or writes to."""
        graph = self.program.graph
        made = [Value(graph.specs[slot], device, None, -1) for slot in graph.outputs]
        return made, [made[place] for place in self.results]


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


def if_held(call: Call) -> Call:
    """The same call where somebody holds memory that its program would otherwise take."""
    key = call.key, "held"
    return Call(key, call.values, sync.shortcuts.get(key))


def may_give(call: Call, *known: Sequence[Any]) -> bool:
    """Whether nobody holds what the program takes, but for the lists `known`: of values, or of (value, view)."""
    shortcut, values = call.shortcut, call.values
    if shortcut is None or not shortcut.gives:
        return True
    holders = Counter(each[0] if each.__class__ is tuple else each for each in chain(*known))
    counts = [getrefcount(values[place]) - holders[values[place]] for place in shortcut.gives]
    return max(counts) <= _LISTED + 1 and not any(values[place].shared for place in shortcut.gives)  # 1: the counter


def run(call: Call, made: list[Value], numbers: Sequence[float | int], draws: list[int]) -> None:
    """Starts the program; `made` are the values that get its outputs."""
    shortcut, values = call.shortcut, call.values
    assert shortcut is not None
    schedule, program = shortcut.schedule, shortcut.program
    buffers = [values[place].buffer for place in shortcut.inputs]
    keys = keys_of(draws) if draws else None
    lines = lambda: lines_of(schedule.cut, schedule.lines)  # noqa: E731
    outputs = executor.run(program, buffers, numbers, keys, Cause.SYNC, lines)
    for value, buffer, line in zip(made, outputs, schedule.output_lines, strict=True):
        value.buffer = buffer
        value.line = line
    _graph_size.add(len(program.graph.operations))
    census.values.value += len(made)
    census.buffers.value += len(made)
    for counter, count in schedule.counts:
        counter.value += count
    if config.sync_wait():
        executor.wait()


def learn(key: Any, slots: list[int], results: Sequence[int], schedule: Schedule) -> None:
    """Keeps the `schedule` of a tape that held one call alone, whose values had these `slots` and whose results those.

    Not if it needs more than the call's operands, or leaves a tensor what it had.
    """
    program, part = schedule.program, schedule.cut
    if program is None or key in sync.shortcuts:
        return
    if not set(part.inputs) <= set(slots) or not set(results) <= set(part.outputs):
        return
    inputs, outputs = [slots.index(slot) for slot in part.inputs], map(part.outputs.index, results)
    gives = tuple(inputs[index] for index in program.donated)
    sync.shortcuts[key] = Shortcut(schedule, program, tuple(inputs), tuple(outputs), gives)
    while len(sync.shortcuts) > 4 * config.compilation_cache_size():
        sync.shortcuts.popitem(last=False)
