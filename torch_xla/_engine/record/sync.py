"""From recorded operations to buffers: liveness → cut → program → results. The whole path of a step, top to bottom."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from sys import getrefcount
from typing import Any

from .. import config, lowering_settings, metrics
from ..client import platform
from ..compile import cache
from ..compile.program import Program
from ..compile.source_metadata import UNKNOWN, Origins, scopes_at
from ..execute import executor
from ..execute.executor import Around
from ..graph.aliasing import in_order, successors
from ..graph.graph import Cut, Operation, cut, decode, effective, needed, needed_in_order, slots_of
from ..graph.plan import Plan
from ..graph.spec import spec_of
from ..graph.tape import Tape, Value
from ..graph.verify import verify
from ..lowering.storage import WRITE
from ..metrics import events
from ..metrics.events import Cause
from ..metrics.lines import Line, user_lines
from ..uninterrupted import run_through, stores
from . import donors, launcher, live_counters, marks, recency
from .device import LOCK, Device, empty_plan
from .launcher import launch
from .unlocked import Attempt, NotCompiled, under_lock


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
    is_collective: bool = False  # whether its tape holds something that several processes do together

    def serves(self, live: bytes) -> bool:
        """Whether it computes all that is `live` and gives nothing of it away."""
        donated = {self.cut.inputs[index] for index in self.program.donated} if self.program else set()
        inputs = set(self.cut.inputs)
        for slot, (has, wants) in enumerate(zip(self.live, live, strict=True)):
            if wants and not has and (slot not in inputs or slot in donated):
                return False
        return True


class _Known(list[Schedule]):
    """The schedules of one tape."""

    __slots__ = ("used",)
    used: int  # when one was looked up last


_tracing = metrics.metric("LazyTracing")
_graph_size = metrics.metric("TensorsGraphSize", metrics.Unit.SCALAR)

# The schedules of each tape; more than one where not always the same values are held at its end.
_schedules: dict[Any, _Known] = {}

# What runs a single operation without a tape (`eager_cache`).
shortcuts: dict[Any, Any] = {}


# Looks at a program that is about to run, and returns what is to be called once the step is over (`diagnostics/`).
inspect: Callable[[Schedule, Tape], Callable[[], None]] | None = None


# An operation is being recorded: nobody else may record.
_HOLDING = Attempt(True, 0.0)

# So many values a tape may have before it is looked through.
TAPE_LIMIT = 100_000


def sync_device(device: Device, wait: bool = False) -> None:
    """Starts the computation of everything recorded on `device` that somebody still holds, and begins a new tape."""
    if device.tape.code or device.marks:
        with LOCK:
            if device.marks:
                marks.keep(device)
        under_lock(partial(_run_all, device))
    if wait or config.sync_wait():
        executor.wait([device.target.device])


def _run_all(device: Device, attempt: Attempt) -> None:
    while device.tape.code and not _evaluate(device, None, Cause.SYNC, attempt):
        pass


def materialise(value: Value) -> Any:
    """The buffer of `value`: runs what it needs, and nothing else, if it is pending."""
    if value.buffer is None:
        compute((value,))
    return value.buffer


def compute(values: Sequence[Value], of_transfer: bool = False) -> None:
    """Starts what the `values` need, and nothing else: one program for those on one device.

    With `of_transfer` a transfer follows, which tells of this evaluation.
    """
    under_lock(partial(_compute, values, of_transfer))


def _compute(values: Sequence[Value], of_transfer: bool, attempt: Attempt) -> None:
    while roots := _pending(values):
        for device, slots in roots.items():
            if not _evaluate(device, tuple(slots), Cause.READ, attempt, told=of_transfer):
                break  # slots may be others now


def _pending(values: Sequence[Value]) -> dict[Device, list[int]]:
    """The slots of those of the `values` that were not computed."""
    found: dict[Device, list[int]] = {}
    for value in values:
        if value.buffer is None:
            device: Device = value.device
            if value.tape is None:
                device.tape.enter(value, empty_plan(value))
            elif value.tape is not device.tape:
                platform.refuse_fork()
                raise RuntimeError("internal error: a value lost its tape; please report it with your program")
            found.setdefault(device, []).append(value.slot)
    return found


class _Changed(Exception):
    """Something was recorded on a tape, or it was evaluated, while its program was found and compiled."""


class _Refusing(dict[int, None]):
    def __missing__(self, length: int) -> None:
        raise _Changed


def _unchanged(tape: Tape, length: int) -> Iterator[None]:
    """Raises `_Changed`, when it is run through, if the code of `tape` has not this length any more."""
    return map(_Refusing({length: None}).__getitem__, map(len, map(getattr, (tape,), ("code",))))


def _evaluate(
    device: Device, roots: tuple[int, ...] | None, cause: Cause, attempt: Attempt, told: bool = False
) -> bool:
    """Runs the tape of `device`. False if nothing was run because the tape has changed meanwhile.

    Garbage may be collected, with finalizers that may record or even sync. Raises `NotCompiled` where the attempt may
    not compile.
    """
    start = 0.0
    if events.closely or (events.watched and not told and roots):
        start = time.perf_counter() - attempt.seconds
    if events.guarded:
        events.ask(events.Evaluation(cause, device.index, user_lines(events.depth), time.perf_counter(), 0.0, 0))
    tape = device.tape
    traced = time.perf_counter_ns() - tape.started
    values = tape.values
    live = held(values)
    if donors.marked and len(live) == len(values):
        live = donors.without_donors(values, live)
    length = len(tape.code)
    if len(live) != len(values):
        return False
    schedule = _find(device, live, roots)
    if schedule is None:
        gc.collect()
        live = held(values)
        schedule = _find(device, live, roots, is_exact=True)
    if schedule is None or len(tape.code) != length:
        return False
    if not attempt.compiles:
        _refuse_to_compile(schedule, tape, cause)
    _tracing.add(traced - int(attempt.seconds * 1e9))
    if device.last_schedule is not None:
        device.last_schedule.followed_by = schedule
    following = schedule.followed_by
    fresh = device.new_tape(following.code if following else None, following.lines if following else None)
    unheld = 0
    if roots is None:
        ends = _end_of(tape, fresh, device)
    else:
        ends, unheld = _carry_over(schedule, tape, fresh, device)
    if tape.scopes and (tape.scopes[-1][1] or fresh.scopes):
        fresh.scopes.append((len(fresh.code), tape.scopes[-1][1]))  # those still open
    afterwards = None
    unchanged = _unchanged(tape, length)
    try:
        if schedule.program is None:
            run_through(chain(unchanged, ends))
        else:
            if inspect is not None:
                afterwards = inspect(schedule, tape)
            _run(schedule.program, schedule, tape, cause, Around(before=unchanged, after=ends))
    except _Changed:
        return False
    live_counters.values.value += schedule.made + unheld
    device.last_schedule = schedule
    if start:
        seconds, operations = time.perf_counter() - start, len(schedule.cut.positions)
        frames = user_lines(events.depth)
        events.emit(events.Evaluation(cause, device.index, frames, start, seconds, operations, told))
    if afterwards is not None:
        afterwards()
    return True


def _refuse_to_compile(schedule: Schedule, tape: Tape, cause: Cause) -> None:
    program, part = schedule.program, schedule.cut
    if program is not None and launcher.describe is None:
        numbers = [tape.numbers[i] for i in part.numbers]
        if not program.compiled_for(numbers):
            buffers = [tape.values[slot].buffer for slot in part.inputs]
            raise NotCompiled(program, numbers, buffers, cause, lambda: lines_of(part, schedule.lines))


def _find(device: Device, live: bytes, roots: tuple[int, ...] | None, is_exact: bool = False) -> Schedule | None:
    """The schedule of the tape of `device`, of whose values those are `live` that somebody holds.

    `None` if garbage may hold some that nobody else does, and that must not decide: all processes are to find the same
    program of a collective. It does not with `is_exact`.
    """
    tape = device.tape
    shared = tuple(tape.shared)
    if not roots and roots is not None:
        return _schedule(device, live, roots, shared)
    given = donors.slots_of(tape.values) if donors.marked else ()
    key = (tuple(tape.code), roots, shared, given, device.index, device.spread, lowering_settings.now())
    known = _schedules.setdefault(key, _Known())
    known.used = recency.now()
    is_collective = known[0].is_collective if known else _exchanges(tape)
    if is_collective and not is_exact and [schedule.live for schedule in known] != [live]:
        return None
    for schedule in known:
        if schedule.live == live:
            return schedule
    if roots is None and not is_collective:
        # The garbage collector decides when a cycle of references lets go of a value. A program that computes a few
        # values too many is better than another program; from the third difference on we make one that fits all.
        for schedule in known:
            if schedule.serves(live):
                return schedule
        if len(known) > 1:
            for schedule in known:
                live = bytes(map(max, live, schedule.live))
    schedule = _schedule(device, live, roots, shared)
    schedule.is_collective = is_collective
    known.append(schedule)
    recency.trim(_schedules, 4 * config.compilation_cache_size())
    return schedule


def _exchanges(tape: Tape) -> bool:
    """Whether something on the tape is done by several processes together."""
    return any(
        entry.effect is not None and entry.effect.is_collective for entry in tape.code if entry.__class__ is Plan
    )


def _run(program: Program, schedule: Schedule, tape: Tape, cause: Cause, around: Around) -> None:
    values = tape.values
    part = schedule.cut
    if donors.marked:
        donors.refuse_taken([values[slot] for slot in part.inputs])
    outputs = [values[slot] for slot in part.outputs]
    # They may outlive the tape, and must not keep all the others alive through it.
    settled = chain(stores(outputs, "line", schedule.output_lines), stores(outputs, "tape", repeat(None)))
    launch(
        program,
        [values[slot] for slot in part.inputs],
        outputs,
        [tape.numbers[i] for i in part.numbers],
        [tape.draws[i] for i in part.draws],
        cause,
        lambda: lines_of(part, schedule.lines),
        Around(around.before, chain(settled, around.after)),
        schedule.counts,
    )
    _graph_size.add(len(part.positions))


def _end_of(tape: Tape, following: Tape, device: Device) -> Iterator[Any]:
    """What puts another tape in the place of one that was evaluated."""
    # Values may outlive their tape; they must not keep all the others alive through it.
    return map(setattr, (device, tape, tape, tape), ("tape", "values", "code", "reads"), (following, [], [], {}))


def _schedule(device: Device, live: bytes, roots: tuple[int, ...] | None, shared: tuple[int, ...]) -> Schedule:
    tape = device.tape
    inputs, operations, producer = decode(tape.code)
    pending = [slot for slot, made_by in enumerate(producer) if made_by >= 0 and live[slot]]
    effects = effective(operations)
    if roots is None:
        chosen = needed(operations, producer, pending, effects=effects)
        outputs = pending
        kept: list[Operation] = []
    else:
        # Who reads a value waits, and is told what failed before it.
        asked = [*roots, *slots_of(operations, _reporting(operations, effects))] if roots else roots
        chosen = needed_in_order(operations, producer, asked)
        outputs, kept = _parted(operations, producer, pending, chosen, effects)
    if effects:
        outputs = _with_reported(operations, chosen, outputs)
    part = cut(inputs, operations, chosen, outputs)
    if config.check():
        verify(part.graph)
    donated: tuple[int, ...] = ()
    if roots is None:
        successor = successors(part.graph)
        donated = _donated(part, live, shared, successor, device.spread is not None)
        order = in_order(part.graph, donated, successor)
        part = cut(inputs, operations, chosen, [outputs[index] for index in order])
    program = (
        cache.program_of(part.graph, donated, device.target_of(part.graph)) if outputs or part.graph.effects else None
    )
    counts = {"SyncTensorsToData": len(outputs)}
    for operation in part.graph.operations:
        name = counter_name(operation.plan.op)
        counts[name] = counts.get(name, 0) + 1
    lines = tape.all_lines()
    if program is not None and program.origins is UNKNOWN:
        program.origins = Origins(lines_of(part, lines), scopes_at(part.positions, tape.scopes))
    made_at = _lines_of_outputs(part, lines)
    made = sum(made_by >= 0 for made_by in producer) - sum(len(operation.plan.outputs) for operation in kept)
    counters = [(metrics.counter(name), count) for name, count in counts.items()]
    return Schedule(live, program, part, tape.code, lines, kept, counters, made_at, made)


def _parted(
    operations: Sequence[Operation],
    producer: Sequence[int],
    pending: Sequence[int],
    chosen: Sequence[int],
    effects: Sequence[int],
) -> tuple[list[int], list[Operation]]:
    """What running the `chosen` operations gives, and the operations that are left to do."""
    done = set(chosen)
    # What somebody holds and is computed on the way is kept: nothing is computed twice.
    outputs = [slot for slot in pending if producer[slot] in done]
    left = [slot for slot in pending if producer[slot] not in done]
    later = [index for index in effects if index not in done]
    kept = needed(operations, producer, left, set(outputs), later)
    # Nor is an effect: what is left takes the results of those that are done, though nobody else holds them.
    made = set(slots_of(operations, (index for index in effects if index in done)))
    if made:
        kept = needed(operations, producer, left, made.union(outputs), later)
        read = {slot for index in kept for slot in operations[index].operands}
        outputs = sorted({*outputs, *(read & made)})
    return outputs, [operations[index] for index in kept]


def _with_reported(operations: Sequence[Operation], chosen: Sequence[int], outputs: Sequence[int]) -> list[int]:
    """The outputs, and what is looked at on the host besides."""
    return sorted({*outputs, *slots_of(operations, _reporting(operations, chosen))})


def _reporting(operations: Sequence[Operation], chosen: Sequence[int]) -> list[int]:
    """Those of the `chosen` operations whose results are looked at on the host."""
    return [index for index in chosen if (effect := operations[index].plan.effect) and effect.is_reported]


def _donated(
    part: Cut, live: bytes, shared: tuple[int, ...], successor: dict[int, int], is_spread: bool
) -> tuple[int, ...]:
    """The inputs whose last holder is the tape, as far as an output can take their memory; the `successor`s do so."""
    room: dict[tuple[Any, Any], int] = {}
    specs = part.graph.specs
    for slot in part.graph.outputs:
        place = (specs[slot].size, specs[slot].dtype)
        room[place] = room.get(place, 0) + 1
    donated: list[int] = []
    # Whether the memory of one fits another is known of successors alone where values are divided.
    candidates = [each for each in enumerate(part.inputs) if not is_spread or each[0] in successor]
    for index, slot in sorted(candidates, key=lambda each: each[0] not in successor):
        place = (specs[index].size, specs[index].dtype)
        if not live[slot] and slot not in shared and room.get(place, 0):
            room[place] -= 1
            donated.append(index)
    return tuple(sorted(donated))


def relieve(device: Device) -> None:
    """Keeps a tape from growing without end: drops what nobody needs any more, and runs it if much is left."""
    with LOCK:
        while not _evaluate(device, (), Cause.FULL, _HOLDING):
            pass
        if len(device.tape.values) > TAPE_LIMIT // 2:
            metrics.count("TapeFull")
            while not _evaluate(device, None, Cause.FULL, _HOLDING):
                pass


def _carry_over(schedule: Schedule, old: Tape, tape: Tape, device: Device) -> tuple[Iterator[Any], int]:
    """Records again, on the new `tape`, what the evaluation of one value leaves undone.

    The values learn of it when what this returns is run through. The number is of those that nobody holds.
    """
    unheld = 0
    slots: dict[int, int] = {}
    moved: list[Value] = []
    computed = set(schedule.cut.outputs)
    scopes = scopes_at([operation.position for operation in schedule.kept], old.scopes)
    for index, operation in enumerate(schedule.kept):
        plan = operation.plan
        for slot in operation.operands:
            if slot not in slots:
                value = old.values[slot]
                slots[slot] = tape.take_over(value)
                moved.append(value)
        if operation.position in schedule.lines and not tape.expects(plan):
            tape.lines[len(tape.code)] = schedule.lines[operation.position]
        if scopes:
            tape.scopes.append((len(tape.code), scopes[index]))
        first = operation.first_number
        numbers = old.numbers[first : first + len(plan.numbers)]
        draws = old.draws[operation.draw : operation.draw + plan.draws] if plan.draws else ()
        made = tape.append(plan, [slots[slot] for slot in operation.operands], device, numbers, draws)
        for nth, value in enumerate(made):
            slot = operation.first_output + nth
            slots[slot] = value.slot
            before = old.values[slot]
            if slot in computed or before.buffer is not None:
                unheld += 1
            else:
                tape.values[value.slot] = value = before
            moved.append(value)
    placed = chain(stores(moved, "slot", range(len(moved))), stores(moved, "tape", repeat(tape)))
    return chain(placed, _end_of(old, tape, device)), unheld


def counter_name(op: Any) -> str:
    """What operations like this one are counted as: `xla::add`."""
    return "xla::" + str(op).split("::")[-1].removeprefix("aten.").split(".")[0]


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
