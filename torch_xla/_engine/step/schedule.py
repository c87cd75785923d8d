"""Choose the program of a tape: from the tape and from who still holds its values, looked up each step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import config, metrics
from ..caching import least_recently_used
from ..compile import program_cache, settings_in_force
from ..compile.program import Program
from ..compile.source_metadata import UNKNOWN, Origins, scopes_at
from ..ir.call_plan import Plan
from ..ir.graph import Cut, Operation, cut, decode, effective, needed, needed_in_order, slots_of
from ..ir.input_output_alias import in_order, successors
from ..ir.tape import Front, Tape, Value
from ..ir.verify_graph import verify
from ..lowering.machinery.padded_rows import APPEND
from ..lowering.views.storage_access import WRITE
from ..metrics.user_lines import Line
from ..tensor.device import Device
from .common_liveness import Liveness, covers
from .ownership import donated, held_at_end
from .partial_evaluation import grows, parted, reporting, with_end, with_reported


@dataclass(slots=True)
class Schedule:
    """What follows from a tape and from who still holds its values: found once, then looked up each step."""

    live: bytes
    program: Program | None  # None: nothing to run
    cut: Cut
    code: Sequence[Any]
    lines: dict[int, Any]
    kept: list[Operation] = field(default_factory=list)  # operations that stay on the tape
    counts: list[tuple[metrics.Counter, int]] = field(default_factory=list)  # what a run adds to the counters
    output_lines: list[Line | None] = field(default_factory=list)
    made: int = 0  # how many values the tape made that no later one makes again
    followed_by: "Schedule | None" = None
    liveness: Liveness | None = None  # of its tape, if several processes evaluate that together

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

    __slots__ = ("liveness", "used")
    used: int  # when one was looked up last

    def __init__(self, liveness: Liveness | None) -> None:
        super().__init__()
        self.liveness = liveness


# The schedules of each tape; more than one where not always the same values are held at its end.
_schedules: dict[Any, _Known] = {}

# Of each tape that several processes evaluate together. Programs come and go, in each process as it may be: this stays.
_livenesses: dict[Any, Liveness] = {}

# What runs a single operation without a tape (`eager_cache`).
shortcuts: dict[Any, Any] = {}


class Seen(NamedTuple):
    """What of a tape is to be evaluated at one moment, and which of its values somebody holds: it may grow, or end."""

    code: tuple[Any, ...]
    values: list[Value]  # the tape's own list: whoever is in a copy counts as held
    live: bytes
    shared: tuple[int, ...]
    given: tuple[int, ...]  # the slots of donors
    length: int  # of the whole code
    behind: Sequence[Operation] = ()  # what stays on the tape, whatever becomes of the rest


def look(tape: Tape, front: Front | None = None) -> Seen | None:
    """What is to be evaluated of a tape: all, or its `front`. `None` if it has changed meanwhile."""
    values = tape.values
    live, given = held_at_end(values)
    # Not by `tuple()`: before 3.12 it may collect garbage while it copies, and a finalizer may have the list moved.
    code = (*tape.code,)
    seen = Seen(code, values, live, (*tape.shared,), given, len(code))
    if len(code) != len(tape.code) or len(live) != len(values) or tape.ended:
        return None
    return seen if front is None else _front_of(seen, front)


def _front_of(seen: Seen, front: Front) -> Seen:
    """What is behind the front holds what it takes."""
    behind = [each for each in decode(seen.code)[1] if each.position >= front.entries]
    live, taken = bytearray(seen.live[: front.values]), set[int]()
    for operation in behind:
        for slot in operation.operands:
            if slot < front.values:
                live[slot] = True
                taken.add(slot)
    shared = (*[slot for slot in seen.shared if slot < front.values],)
    given = (*[slot for slot in seen.given if slot < front.values and slot not in taken],)
    code = seen.code[: front.entries]
    return seen._replace(code=code, live=bytes(live), shared=shared, given=given, behind=behind)


def find(
    device: Device,
    tape: Tape,
    seen: Seen,
    roots: tuple[int, ...] | None,
    is_exact: bool = False,
    compiled: Program | None = None,
) -> Schedule | None:
    """The schedule of a tape of `device` as it was seen; `compiled` was found for it before, and compiled.

    `None` if garbage may hold values that nobody else does, and that must not decide: all processes are to find the
    same program of what they do together. It does not with `is_exact`.
    """
    live = seen.live
    if not roots and roots is not None:
        return _schedule(device, tape, seen, live, roots) if is_exact or not is_common(device, seen.code) else None
    key = seen.code, roots, seen.shared, seen.given, tape.rest, device.index, device.spread, settings_in_force.now()
    known = _schedules.get(key)
    if known is None:
        known = _schedules[key] = _Known(_liveness(key, device, seen.code))
    known.used = least_recently_used.now()
    liveness = known.liveness
    if liveness is not None:
        liveness.used = known.used
        for schedule in known:
            if schedule.program is compiled and compiled is not None and covers(schedule.live, live):
                return schedule
        counted = liveness.of_reachable(live, seen.values) if is_exact else liveness.whatever_is_garbage(live)
        if counted is None:
            return None
        live = counted
    for schedule in known:
        if schedule.live == live:
            return schedule
    if roots is None and liveness is None:
        # The garbage collector decides when a cycle of references lets go of a value. A program that computes a few
        # values too many is better than another program; from the third difference on we make one that fits all.
        for schedule in known:
            if schedule.serves(live):
                return schedule
        if len(known) > 1:
            for schedule in known:
                live = bytes(map(max, live, schedule.live))
    schedule = _schedule(device, tape, seen, live, roots)
    schedule.liveness = liveness
    known.append(schedule)
    least_recently_used.trim(_schedules, 4 * config.compilation_cache_size())
    return schedule


def _liveness(key: Any, device: Device, code: Sequence[Any]) -> Liveness | None:
    found = _livenesses.get(key)
    if found is None and is_common(device, code):
        found = _livenesses[key] = Liveness()
        least_recently_used.trim(_livenesses, 4 * config.compilation_cache_size())
    return found


def is_common(device: Device, code: Sequence[Any]) -> bool:
    """Whether what is on a tape is done by several processes together."""
    if device.spread is not None and len(device.spread.processes) > 1:
        return True
    return any(entry.effect is not None and entry.effect.is_collective for entry in code if entry.__class__ is Plan)


def _schedule(device: Device, tape: Tape, seen: Seen, live: bytes, roots: tuple[int, ...] | None) -> Schedule:
    inputs, operations, producer = decode(seen.code)
    pending = [slot for slot, made_by in enumerate(producer) if made_by >= 0 and live[slot]]
    effects = effective(operations)
    chosen = needed(operations, producer, pending, effects=effects)
    outputs, kept = pending, list[Operation]()
    if roots is not None:
        # Who reads a value waits, and is told what failed before it.
        asked = [*roots, *slots_of(operations, reporting(operations, effects))] if roots else []
        if roots:  # what grew grows now, lest it is another program that has to move it into its room
            asked.extend(slot for slot in pending if operations[producer[slot]].plan.op == APPEND)
        read = needed_in_order(operations, producer, asked)
        found, left = parted(operations, producer, pending, read, effects, keeps_counters=bool(tape.rest))
        if roots and tape.rest and not is_common(device, seen.code) and grows(operations, read, left, tape.rest):
            roots = None
        else:
            chosen, outputs, kept = read, found, left
    if effects:
        outputs = with_end(operations, chosen, with_reported(operations, chosen, outputs))
    part = cut(inputs, operations, chosen, outputs)
    if config.check():
        verify(part.graph)
    given_away: tuple[int, ...] = ()
    if roots is None:
        successor = successors(part.graph)
        given_away = donated(part, live, seen.shared, successor, device.spread is not None)
        order = in_order(part.graph, given_away, successor)
        part = cut(inputs, operations, chosen, [outputs[index] for index in order])
    program = (
        program_cache.program_of(part.graph, given_away, device.target_of(part.graph))
        if outputs or part.graph.effects
        else None
    )
    counts = {"SyncTensorsToData": len(outputs)}
    for operation in part.graph.operations:
        name = counter_name(operation.plan.op)
        counts[name] = counts.get(name, 0) + 1
    lines = tape.all_lines(seen.code)
    if program is not None and program.origins is UNKNOWN:
        program.origins = Origins(lines_of(part, lines), scopes_at(part.positions, tape.scopes))
    made_at = _lines_of_outputs(part, lines)
    made = sum(made_by >= 0 for made_by in producer) - sum(len(operation.plan.outputs) for operation in kept)
    counters = [(metrics.counter(name), count) for name, count in counts.items()]
    return Schedule(live, program, part, seen.code, lines, kept, counters, made_at, made)


# Operators that PyTorch has several forms of, and the name that PyTorch/XLA counts them by.
_COUNTED_AS = dict.fromkeys(
    ("_native_batch_norm_legit_functional", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
    "native_batch_norm",
)


def counter_name(op: Any) -> str:
    """Return what operations like this one are counted as: `xla::add`."""
    name = str(op).split("::")[-1].removeprefix("aten.").split(".")[0]
    return "xla::" + _COUNTED_AS.get(name, name)


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


def _forget_half() -> None:
    for table in (_schedules, shortcuts):
        least_recently_used.trim(table, len(table) // 2)


program_cache.when_scarce.append(_forget_half)


def clear_schedules() -> None:
    """Forgets every schedule and program."""
    _schedules.clear()
    shortcuts.clear()
    program_cache.clear()
