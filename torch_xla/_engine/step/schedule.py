"""Choose the program of a tape: from the tape and from who still holds its values, looked up each step.

The first time, the `PASSES` work it out: liveness → partition → fuse → donation → growing sizes → program. Each has a
file.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from .. import config, metrics
from ..caching import least_recently_used
from ..compile import program_cache, settings_in_force
from ..compile.program import Program
from ..compile.source_metadata import UNKNOWN, Origins, scopes_at
from ..ir.call_plan import Plan
from ..ir.graph import Cut, decode
from ..ir.tape import ALL, Tape
from ..lowering.machinery.capacity_ops import CUT
from ..metrics.user_lines import Line
from ..runtime import platform
from ..tensor.device import Device
from .common_liveness import Liveness, covers
from .donation import donate
from .fuse import fuse
from .growing_sizes import rooms as rooms_of
from .growing_sizes import share as share_lengths
from .liveness import find_pending
from .partition import choose as choose_operations
from .step import Draft, Schedule, Seen, lines_of


class _Known(list[Schedule]):
    """The schedules of one tape."""

    __slots__ = ("liveness", "used")
    used: int  # when one was looked up last

    def __init__(self, liveness: Liveness | None) -> None:
        super().__init__()
        self.liveness = liveness


# The schedules of each tape; more than one where not always the same values are held at its end.
_schedules: dict[Hashable, _Known] = {}

# Of each tape that several processes evaluate together. Programs come and go, in each process as it may be: this stays.
_livenesses: dict[Hashable, Liveness] = {}

# Calls of a single operation that need no tape, by key (`eager_cache`).
shortcuts: dict[Any, Any] = {}


def find(
    device: Device,
    tape: Tape,
    seen: Seen,
    roots: tuple[int, ...] | None,
    is_exact: bool = False,
    compiled: Program | None = None,
) -> Schedule | None:
    """Return the schedule of a tape as it was seen. `compiled` is the program that an earlier attempt compiled.

    `None` if values may be held by garbage alone and the tape is one of several processes: these must find the same
    program, so garbage must not decide. With `is_exact` garbage was collected.
    """
    live = seen.live
    if not roots and roots is not None:
        return _schedule(device, tape, seen, live, roots) if is_exact or not is_common(device, seen.code) else None
    where = device.index, device.spread, platform.elsewhere
    key = seen.code, roots, seen.shared, seen.given, tape.rest, where, settings_in_force.now()
    known = _schedules.get(key)
    if known is None:
        known = _schedules[key] = _Known(_liveness(key, device, seen.code))
    known.used = least_recently_used.now()
    common = known.liveness
    if common is not None:
        common.used = known.used
        for schedule in known:
            if schedule.program is compiled and compiled is not None and covers(schedule.live, live):
                return schedule
        counted = common.of_reachable(live, seen.values) if is_exact else common.whatever_is_garbage(live)
        if counted is None:
            return None
        live = counted
    for schedule in known:
        if schedule.live == live:
            return schedule
    if roots is None and common is None:
        # The garbage collector decides when a cycle of references lets go of a value. A program that computes a few
        # values too many is better than another program; from the third difference on we make one that fits all. One
        # that was refused or failed does not count: what asked for too much is not held any more.
        sound = [each for each in known if each.has_run or (each.program is compiled and compiled is not None)]
        for schedule in sound:
            if schedule.serves(live):
                return schedule
        if len(sound) > 1:
            for schedule in sound:
                live = bytes(map(max, live, schedule.live))
    schedule = _schedule(device, tape, seen, live, roots)
    schedule.liveness = common
    known.append(schedule)
    least_recently_used.trim(_schedules, 4 * config.compilation_cache_size())
    return schedule


def _liveness(key: object, device: Device, code: Sequence[object]) -> Liveness | None:
    found = _livenesses.get(key)
    if found is None and is_common(device, code):
        found = _livenesses[key] = Liveness()
        least_recently_used.trim(_livenesses, 4 * config.compilation_cache_size())
    return found


def is_common(device: Device, code: Sequence[object]) -> bool:
    """Return whether what is on a tape is done by several processes together."""
    if device.spread is not None and len(device.spread.processes) > 1:
        return True
    return any(entry.effect is not None and entry.effect.is_collective for entry in code if entry.__class__ is Plan)


def choose_program(draft: Draft) -> Draft:
    """Pass 6, program: find the program of the graph, or make it. There is none if nothing has to run."""
    part = draft.part
    if part is not None and (part.graph.outputs or part.graph.effects):
        graph = part.graph if draft.shared is None else draft.shared[0]
        draft.program = program_cache.program_of(graph, draft.donated, draft.device.target_of(graph))
    return draft


# From a tape to the program that runs: each pass fills in what the next ones need.
PASSES: tuple[Callable[[Draft], Draft], ...] = (
    find_pending,
    choose_operations,
    fuse,
    donate,
    share_lengths,
    choose_program,
)


def _schedule(device: Device, tape: Tape, seen: Seen, live: bytes, roots: tuple[int, ...] | None) -> Schedule:
    draft = Draft(device, tape, seen, live, roots, is_common(device, seen.code), *decode(seen.code))
    for each in PASSES:
        draft = each(draft)
    part, program = draft.part, draft.program
    assert part is not None
    counts = {"SyncTensorsToData": len(draft.outputs)}
    for operation in part.graph.operations:
        name = counter_name(operation.plan.op)
        counts[name] = counts.get(name, 0) + 1
    lines = tape.all_lines(seen.code)
    if program is not None and program.origins is UNKNOWN:
        program.origins = Origins(lines_of(part, lines), scopes_at(part.positions, tape.scopes))
    made_at = _lines_of_outputs(part, lines)
    left = sum(len(operation.plan.outputs) for operation in draft.kept)
    made = sum(made_by >= 0 for made_by in draft.producer) - left
    counters = [(metrics.counter(name), count) for name, count in counts.items()]
    schedule = Schedule(live, program, part, seen.code, lines, draft.kept, counters, made_at, made)
    schedule.cuts = tuple(each.first_output for each in draft.operations if each.plan.op == CUT)
    schedule.runs_all = roots is not None and (draft.runs_all or tape.rest == ALL)
    if draft.shared is not None:
        graph, length = draft.shared
        schedule.length, schedule.rooms = (length,), rooms_of(part.graph, graph)
    return schedule


# Operators that PyTorch has several forms of, and the name that PyTorch/XLA counts them by.
_COUNTED_AS = dict.fromkeys(
    ("_native_batch_norm_legit_functional", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
    "native_batch_norm",
)


def counter_name(op: object) -> str:
    """Return the name of the counter of an operator: `xla::add`."""
    name = str(op).split("::")[-1].removeprefix("aten.").split(".")[0]
    return "xla::" + _COUNTED_AS.get(name, name)


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
    """Forget every schedule and program."""
    _schedules.clear()
    shortcuts.clear()
    program_cache.clear()
