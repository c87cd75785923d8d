"""From recorded operations to buffers: liveness → cut → program → results. The whole path of a step, top to bottom."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from sys import getrefcount
from typing import Any

import numpy as np

from .. import config, dtypes, metrics
from ..compile import cache
from ..compile.origins import UNKNOWN, Origins, scopes_at
from ..compile.program import Program
from ..execute import executor
from ..graph.graph import Cut, Operation, cut, decode, needed
from ..graph.spec import spec_of
from ..graph.succession import in_order, successors
from ..graph.tape import Tape, Value
from ..graph.verify import verify
from ..lowering.storage import WRITE
from ..metrics import events
from ..metrics.events import Cause
from ..metrics.lines import Line, user_lines
from . import census
from .device import LOCK, Device, empty_plan
from .generator import keys_of


def _reference_counts(values: Sequence[Value]) -> list[int]:
    return [getrefcount(value) for value in values]


# What a value counts that only its tape holds.
_UNHELD = _reference_counts([Value(spec_of((), (), None), None, None, 0)])[0]


def held(values: Sequence[Value]) -> bytes:
    # One byte per value: does anybody but the tape hold it? A storage, another thread's frame: all count. Reference
    # counts answer in 40 ns a value what weak references to every storage would answer in 400.
    return bytes([count > _UNHELD for count in _reference_counts(values)])


@dataclass(slots=True)
class Schedule:
    """What follows from a tape and from who still holds its values: found once, then looked up each step."""

    live: bytes
    program: Program | None  # None: nothing to run
    cut: Cut
    code: list[Any]
    lines: dict[int, Any]
    kept: list[Operation] = field(default_factory=list)  # operations that stay on the tape
    counts: list[tuple[metrics.Counter, int]] = field(default_factory=list)  # what a run adds to the counters
    output_lines: list[Line | None] = field(default_factory=list)
    made: int = 0  # how many values the tape made that no later one makes again
    followed_by: "Schedule | None" = None

    def serves(self, live: bytes) -> bool:
        """Whether it computes all that is `live` and gives nothing of it away."""
        donated = {self.cut.inputs[index] for index in self.program.donated} if self.program else set()
        inputs = set(self.cut.inputs)
        for slot, (has, wants) in enumerate(zip(self.live, live, strict=True)):
            if wants and not has and (slot not in inputs or slot in donated):
                return False
        return True


_tracing = metrics.metric("LazyTracing")
_graph_size = metrics.metric("TensorsGraphSize", metrics.Unit.SCALAR)

# The schedules of each tape; more than one where not always the same values are held at its end.
_schedules: "OrderedDict[Any, list[Schedule]]" = OrderedDict()

# What runs a single operation without a tape (`at_once`).
shortcuts: "OrderedDict[Any, Any]" = OrderedDict()


# Looks at a program that is about to run, and returns what is to be called once the step is over (`sight/`).
inspect: Callable[[Schedule, Tape], Callable[[], None]] | None = None


# So many values a tape may have before it is looked through.
TAPE_LIMIT = 100_000


def sync_device(device: Device, wait: bool = False) -> None:
    """Starts the computation of everything recorded on `device` that somebody still holds, and begins a new tape."""
    if device.tape.code:
        with LOCK:
            _evaluate(device, None, Cause.SYNC)
    if wait or config.sync_wait():
        executor.wait()


def materialise(value: Value) -> Any:
    """The buffer of `value`: runs what it needs, and nothing else, if it is pending."""
    if value.buffer is None:
        compute((value,))
    return value.buffer


def compute(values: Sequence[Value], of_transfer: bool = False) -> None:
    """Starts what the `values` need, and nothing else: one program for those on one device.

    With `of_transfer` a transfer follows, which tells of this evaluation.
    """
    with LOCK:
        roots: dict[Device, list[int]] = {}
        for value in values:
            if value.buffer is None:
                device: Device = value.device
                if value.tape is None:
                    device.tape.enter(value, empty_plan(value))
                elif value.tape is not device.tape:
                    raise RuntimeError("internal error: a value lost its tape; please report it with your program")
                roots.setdefault(device, []).append(value.slot)
        for device, slots in roots.items():
            _evaluate(device, tuple(slots), Cause.READ, told=of_transfer)


def _evaluate(device: Device, roots: tuple[int, ...] | None, cause: Cause, told: bool = False) -> None:
    start = 0.0
    if events.closely or (events.watched and not told and roots):
        start = time.perf_counter()
    if events.guarded:
        events.ask(events.Evaluation(cause, device.index, user_lines(events.depth), time.perf_counter(), 0.0, 0))
    tape = device.tape
    _tracing.add(time.perf_counter_ns() - tape.started)
    values = tape.values
    live = held(values)
    schedule = _find(device, live, roots)
    census.values.value += schedule.made
    afterwards = None
    if schedule.program is not None:
        if inspect is not None:
            afterwards = inspect(schedule, tape)
        _run(schedule.program, schedule, tape, cause)
    previous = device.last_schedule
    if previous is not None:
        previous.followed_by = schedule
    device.last_schedule = schedule
    following = schedule.followed_by
    device.tape = Tape(following.code if following else None, following.lines if following else None)
    if roots is not None:
        _carry_over(schedule, tape, device)
    if tape.scopes and (tape.scopes[-1][1] or device.tape.scopes):
        device.tape.scopes.append((len(device.tape.code), tape.scopes[-1][1]))  # those still open
    _forget(tape)
    if start:
        seconds, operations = time.perf_counter() - start, len(schedule.cut.positions)
        frames = user_lines(events.depth)
        events.emit(events.Evaluation(cause, device.index, frames, start, seconds, operations, told))
    if afterwards is not None:
        afterwards()


def _find(device: Device, live: bytes, roots: tuple[int, ...] | None) -> Schedule:
    tape = device.tape
    shared = tuple(tape.shared)
    if not roots and roots is not None:
        return _schedule(device, live, roots, shared)
    known = _schedules.setdefault((tuple(tape.code), roots, shared, device.index, dtypes.device_mode()), [])
    for schedule in known:
        if schedule.live == live:
            return schedule
    if roots is None:
        # The garbage collector decides when a cycle of references lets go of a value. A program that computes a few
        # values too many is better than another program; from the third difference on we make one that fits all.
        for schedule in known:
            if schedule.serves(live):
                return schedule
        if len(known) > 1:
            for schedule in known:
                live = bytes(map(max, live, schedule.live))
    schedule = _schedule(device, live, roots, shared)
    known.append(schedule)
    while len(_schedules) > 4 * config.compilation_cache_size():
        _schedules.popitem(last=False)
    return schedule


def _run(program: Program, schedule: Schedule, tape: Tape, cause: Cause) -> None:
    values = tape.values
    plan = schedule.cut
    buffers = [values[slot].buffer for slot in plan.inputs]
    numbers = [tape.numbers[i] for i in plan.numbers]
    keys: np.ndarray | None = keys_of([tape.draws[i] for i in plan.draws]) if plan.draws else None
    results = executor.run(program, buffers, numbers, keys, cause, lambda: lines_of(plan, schedule.lines))
    for slot, buffer, line in zip(plan.outputs, results, schedule.output_lines, strict=True):
        value = values[slot]
        value.buffer = buffer
        value.line = line
        value.tape = None
    _graph_size.add(len(plan.positions))
    census.buffers.value += len(results)
    for counter, count in schedule.counts:
        counter.value += count


def _schedule(device: Device, live: bytes, roots: tuple[int, ...] | None, shared: tuple[int, ...]) -> Schedule:
    tape = device.tape
    inputs, operations, producer = decode(tape.code)
    pending = [slot for slot, made_by in enumerate(producer) if made_by >= 0 and live[slot]]
    if roots is None:
        chosen = needed(operations, producer, pending)
        outputs = pending
        kept: list[Operation] = []
    else:
        chosen = needed(operations, producer, roots)
        done = set(chosen)
        # What somebody holds and is computed on the way is kept: nothing is computed twice.
        outputs = [slot for slot in pending if producer[slot] in done]
        left = [slot for slot in pending if producer[slot] not in done]
        kept = [operations[index] for index in needed(operations, producer, left, set(outputs))]
    part = cut(inputs, operations, chosen, outputs)
    if config.check():
        verify(part.graph)
    donated: tuple[int, ...] = ()
    if roots is None:
        successor = successors(part.graph)
        donated = _donated(part, live, shared, successor)
        order = in_order(part.graph, donated, successor)
        part = cut(inputs, operations, chosen, [outputs[index] for index in order])
    program = cache.program_of(part.graph, donated, device.jax_device) if outputs else None
    counts = {"SyncTensorsToData": len(outputs)}
    for operation in part.graph.operations:
        name = f"xla::{_short_name(operation.plan.op)}"
        counts[name] = counts.get(name, 0) + 1
    lines = tape.all_lines()
    if program is not None and program.origins is UNKNOWN:
        program.origins = Origins(lines_of(part, lines), scopes_at(part.positions, tape.scopes))
    made_at = _lines_of_outputs(part, lines)
    made = sum(made_by >= 0 for made_by in producer) - sum(len(operation.plan.outputs) for operation in kept)
    counters = [(metrics.counter(name), count) for name, count in counts.items()]
    return Schedule(live, program, part, tape.code, lines, kept, counters, made_at, made)


def _donated(part: Cut, live: bytes, shared: tuple[int, ...], successor: dict[int, int]) -> tuple[int, ...]:
    """The inputs whose last holder is the tape, as far as an output can take their memory; the `successor`s do so."""
    room: dict[tuple[Any, Any], int] = {}
    specs = part.graph.specs
    for slot in part.graph.outputs:
        place = (specs[slot].size, specs[slot].dtype)
        room[place] = room.get(place, 0) + 1
    donated: list[int] = []
    for index, slot in sorted(enumerate(part.inputs), key=lambda each: each[0] not in successor):
        place = (specs[index].size, specs[index].dtype)
        if not live[slot] and slot not in shared and room.get(place, 0):
            room[place] -= 1
            donated.append(index)
    return tuple(sorted(donated))


def relieve(device: Device) -> None:
    """Keeps a tape from growing without end: drops what nobody needs any more, and runs it if much is left."""
    with LOCK:
        _evaluate(device, (), Cause.FULL)
        if len(device.tape.values) > TAPE_LIMIT // 2:
            metrics.count("TapeFull")
            _evaluate(device, None, Cause.FULL)


def _carry_over(schedule: Schedule, old: Tape, device: Device) -> None:
    """Records again, on the new tape, what the evaluation of one value left undone."""
    tape = device.tape
    slots: dict[int, int] = {}
    scopes = scopes_at([operation.position for operation in schedule.kept], old.scopes)
    for index, operation in enumerate(schedule.kept):
        plan = operation.plan
        entry: list[Any] = [plan]
        for slot in operation.operands:
            if slot not in slots:
                slots[slot] = tape.enter(old.values[slot])
            entry.append(slots[slot])
        if operation.position in schedule.lines:
            tape.lines[len(tape.code)] = schedule.lines[operation.position]
        if scopes:
            tape.scopes.append((len(tape.code), scopes[index]))
        tape.code += entry
        tape.numbers += old.numbers[operation.first_number : operation.first_number + len(plan.numbers)]
        tape.draws += old.draws[operation.draw : operation.draw + plan.draws] if plan.draws else ()
        for slot in range(operation.first_output, operation.first_output + len(plan.outputs)):
            value = old.values[slot]
            if value.buffer is not None:
                value = Value(value.spec, device, None, 0)
                census.values.value += 1
            slots[slot] = value.slot = len(tape.values)
            value.tape = tape
            tape.values.append(value)


def _forget(tape: Tape) -> None:
    # Values may outlive their tape; they must not keep all the others alive through it.
    tape.values = []
    tape.code = []
    tape.reads = {}


def _short_name(op: Any) -> str:
    name = str(op)
    return name.split("::")[-1].removeprefix("aten.").split(".")[0]


def lines_of(part: Cut, lines: dict[int, Line]) -> tuple[Line | None, ...]:
    """The user's line of each operation of a graph. Views carry none: they have that of the operation they serve."""
    found = [lines.get(position) for position in part.positions]
    operations = part.graph.operations
    for index in range(1, len(found)):
        if found[index] is None and operations[index].plan.op is WRITE:
            found[index] = found[index - 1]  # a write follows the operation whose result it writes
    for index in range(len(found) - 2, -1, -1):
        if found[index] is None:
            found[index] = found[index + 1]  # a read comes before the operation that reads
    return tuple(found)


def _lines_of_outputs(part: Cut, lines: dict[int, Line]) -> list[Line | None]:
    by_operation = lines_of(part, lines)
    made_at: list[Line | None] = [None] * len(part.graph.inputs)
    for operation, line in zip(part.graph.operations, by_operation, strict=True):
        made_at += [line] * len(operation.plan.outputs)
    return [made_at[slot] for slot in part.graph.outputs]


def clear_schedules() -> None:
    """Forgets every schedule and program."""
    _schedules.clear()
    shortcuts.clear()
    cache.clear()
