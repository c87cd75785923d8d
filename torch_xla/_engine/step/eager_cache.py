"""Run one operation at once: find its schedule by the operation and its operands, without a tape.

From the second time on there is no tape: the operands' buffers go into the program, and what comes out into values.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import config, metrics
from ..caching import least_recently_used
from ..compile import settings_in_force
from ..compile.program import Program
from ..ir.tape import Value, set_line
from ..metrics import events
from ..metrics.events import Cause
from ..metrics.observers import observers
from ..tensor import live_counters
from ..tensor.device import Device
from . import executor, in_flight, liveness
from .named_scopes import open_scopes
from .schedule import shortcuts
from .step import Schedule, Step

_graph_size = metrics.metric("TensorsGraphSize", metrics.Unit.SCALAR)


@dataclass(eq=False, slots=True)
class Shortcut:
    """How an operation runs without a tape."""

    schedule: Schedule
    program: Program
    inputs: tuple[int, ...]  # of the values that the operation reads, the one for each input of the program
    results: tuple[int, ...]  # of the program's outputs, the one for each tensor that the operation makes or writes to
    gives: tuple[int, ...]  # of the values that the operation reads, those whose buffers the program takes
    # The program's numbers before and after those of the operation: where views begin that it reads and writes.
    before: tuple[float | int, ...]
    after: tuple[float | int, ...]
    used: int = field(default_factory=least_recently_used.now)  # when it last ran

    def results_on(self, device: Device) -> tuple[list[Value], list[Value]]:
        """Return values for the program's outputs, and those of them for each tensor that the operation makes or writes
        to.
        """
        graph = self.program.graph
        made = [Value(graph.specs[slot], device, None, -1) for slot in graph.outputs]
        return made, [made[place] for place in self.results]


class EagerCall(NamedTuple):
    """A call that needs no tape, if its shortcut is known."""

    key: Any
    values: list[Value]  # what it reads, each once
    shortcut: Shortcut | None


def look_up(operation: Any, operands: Sequence[Any], device: Device) -> EagerCall | None:
    """Return a call of `operation`, which knows the operands' geometry, on `operands`: each a value or (value, view).

    `None` if it needs a tape: an operation is recorded, an operand is not computed, or a listener or an observer wants
    to see each step. The caller holds the lock until the call has run.
    """
    watched = events.closely or events.guarded or observers.inspect_step is not None
    if device.tape.code or device.spread is not None or watched:
        return None
    key = [operation, settings_in_force.now()]
    places: dict[Value, int] = {}
    for operand in operands:
        if operand.__class__ is tuple:
            value: Value = operand[0]
            key += value.spec, operand[1]  # the memory around the view, and where it begins
        else:
            value = operand
        if value.buffer is None or value.device is not device:
            return None
        key.append(places.setdefault(value, len(places)))
    found = tuple(key)
    return EagerCall(found, list(places), shortcuts.get(found))


def if_held(call: EagerCall) -> EagerCall:
    """Return the same call for operands whose memory its program may not take, because it is held elsewhere."""
    key = call.key, "held"
    return EagerCall(key, call.values, shortcuts.get(key))


def taken(call: EagerCall, *known: Sequence[object]) -> liveness.Taken | None:
    """Return the values that the program of `call` takes unless they are held elsewhere; `None` if it may not.

    `known` are lists of values, or of (value, view), that hold them.
    """
    shortcut, values = call.shortcut, call.values
    assert shortcut is not None
    if not shortcut.gives:
        return liveness.NOTHING
    inputs = [values[place] for place in shortcut.inputs]  # as `run` lists them
    return liveness.taken([values[place] for place in shortcut.gives], *known, values, inputs)


def run(
    call: EagerCall,
    made: list[Value],
    numbers: Sequence[float | int],
    draws: list[int],
    before: Iterable[object] = (),
    undo: Iterable[object] = (),
) -> None:
    """Start the program; `made` are the values that get its outputs. `before` and `undo` are those of the `Step`."""
    shortcut, values = call.shortcut, call.values
    assert shortcut is not None
    shortcut.used = least_recently_used.now()
    schedule, program = shortcut.schedule, shortcut.program
    step = Step(
        program,
        [values[place] for place in shortcut.inputs],
        made,
        (*shortcut.before, *numbers, *shortcut.after),
        draws,
        Cause.SYNC,
        schedule.source_lines,
        before,
        map(set_line, made, schedule.output_lines),
        undo,
        schedule.counts,
    )
    if events.closely:
        step.scopes = [open_scopes()] * len(program.graph.operations)
    executor.run(step)
    _graph_size.add(len(program.graph.operations))
    live_counters.values.value += len(made)
    if config.is_set(config.SYNC_WAIT) and config.sync_wait():
        in_flight.wait(shortcut.program.target.devices)


def learn(
    key: object,
    slots: list[int],
    results: Sequence[int],
    numbers: tuple[tuple[float | int, ...], tuple[float | int, ...]],
    schedule: Schedule,
) -> None:
    """Keep the `schedule` of a tape that held one call alone, whose values had these `slots` and whose results those.

    `numbers` are those of the tape before and after the call's own. Not if it needs more than the call's operands, or
    leaves a tensor what it had.
    """
    program, part = schedule.program, schedule.cut
    if program is None or key in shortcuts or schedule.length:
        return
    if not set(part.inputs) <= set(slots) or not set(results) <= set(part.outputs):
        return
    inputs, outputs = [slots.index(slot) for slot in part.inputs], map(part.outputs.index, results)
    gives = tuple(inputs[index] for index in program.donated)
    before, after = numbers
    shortcuts[key] = Shortcut(schedule, program, tuple(inputs), tuple(outputs), gives, before, after)
    least_recently_used.trim(shortcuts, 4 * config.compilation_cache_size())
