"""The path of a step, top to bottom: from recorded operations to buffers (liveness, cut, program, results).

`schedule` finds the program, `residual_ops` says what becomes of the tape, `launcher` starts it.
"""

import gc
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any

from .. import config, metrics
from ..atomic import run_through, stores
from ..compile.program import Program
from ..ir.tape import Failed, Front, Tape, Value
from ..metrics import events
from ..metrics.events import Cause
from ..metrics.user_lines import user_lines
from ..runtime import platform
from ..tensor import live_counters, sharding_annotations
from ..tensor.device import LOCK, Device
from ..tensor.padded_rows import entered
from . import executor, launcher, thread_partition, user_donation
from .executor import Around
from .failed_ops import or_dropped
from .launcher import launch
from .residual_ops import Changed, succeeded, unchanged_by
from .schedule import Schedule, Seen, find, is_common, lines_of, look
from .unlocked_compile import Attempt, NotCompiled, NotItsTurn, is_turn, under_lock, wait_for_turn

_tracing = metrics.metric("LazyTracing")
# Garbage of up to this generation is all.
_ALL = 2
_collected = metrics.counter("CollectedYoungGarbage"), metrics.counter("CollectedGarbage")
_graph_size = metrics.metric("TensorsGraphSize", metrics.Unit.SCALAR)

# Looks at a program that is about to run, and returns what is to be called once the step is over (`diagnostics/`).
inspect: Callable[[Schedule, Tape], Callable[[], None]] | None = None


# An operation is being recorded: nobody else may record.
_HOLDING = Attempt(True)

# So many values a tape may have before it is looked through.
TAPE_LIMIT = 100_000


def sync_device(device: Device, wait: bool = False) -> None:
    """Starts the computation of everything recorded on `device` that somebody still holds, and begins a new tape."""
    _sync(device, wait, _run_all)


def sync_step(device: Device, wait: bool = False) -> None:
    """`sync_device` for what this thread has recorded: what others have stays for their steps (`thread_partition`)."""
    _sync(device, wait, _run_own)


def _sync(device: Device, wait: bool, run: Callable[[Device, Attempt], None]) -> None:
    if device.tape.code or device.marks:
        with LOCK:
            if device.marks:
                sharding_annotations.keep(device)
        or_dropped(partial(_run_in_turn, device, run))
    if wait or config.sync_wait():
        executor.wait([device.target.device])


def _run_in_turn(device: Device, run: Callable[[Device, Attempt], None]) -> None:
    if device.last_schedule is not None:
        wait_for_turn(device.last_schedule.program)  # most likely this one is like it
    under_lock(partial(run, device))


def _run_all(device: Device, attempt: Attempt) -> None:
    while device.tape.code and not _evaluate(device, device.tape, None, Cause.SYNC, attempt):
        pass


def _run_own(device: Device, attempt: Attempt) -> None:
    while (tape := device.tape).code and not _evaluate(
        device, tape, None, Cause.SYNC, attempt, thread_partition.others(tape)
    ):
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
    or_dropped(partial(under_lock, partial(_compute, values, of_transfer)))


def _compute(values: Sequence[Value], of_transfer: bool, attempt: Attempt) -> None:
    while roots := _pending(values):
        for (device, tape), slots in roots.items():
            if not _evaluate(
                device, tape, tuple(slots), Cause.READ, attempt, thread_partition.others(tape), of_transfer
            ):
                break  # slots may be others now


def _pending(values: Sequence[Value]) -> dict[tuple[Device, Tape], list[int]]:
    """The slots of those of the `values` that were not computed, on the tapes where they are."""
    found: dict[tuple[Device, Tape], list[int]] = {}
    for value in values:
        device: Device = value.device
        while value.buffer is None and value.tape is None:
            entered(device.tape, value)
        # Nothing that may collect garbage comes between these: a finalizer may have the tape evaluated.
        tape, current, slot = value.tape, device.tape, value.slot
        if value.buffer is None:
            if isinstance(tape, Failed):
                tape.refuse()
            if tape is not current or tape is None:
                platform.refuse_fork()
                raise RuntimeError("internal error: a value lost its tape; please report it with your program")
            found.setdefault((device, tape), []).append(slot)
    return found


def _evaluate(
    device: Device,
    tape: Tape,
    roots: tuple[int, ...] | None,
    cause: Cause,
    attempt: Attempt,
    waiting: Collection[int] = (),
    told: bool = False,
) -> bool:
    """Runs the `tape` of `device`, but for what the `waiting` threads have recorded and nobody else needs.

    False if nothing was run because the tape has changed meanwhile, or was put in order.

    Garbage may be collected, with finalizers that may record or even sync. Raises `NotReady` where the attempt may
    not compile.
    """
    is_timed = events.closely or (events.watched and not told and roots)
    start = time.perf_counter() - attempt.seconds if is_timed else 0.0
    if events.guarded:
        events.ask(events.Evaluation(cause, device.index, user_lines(events.depth), time.perf_counter(), 0.0, 0))
    traced = time.perf_counter_ns() - tape.started
    front = None
    if waiting and not is_common(device, tape.code):
        front = thread_partition.front_of(tape, waiting, roots)
        if front is None:
            thread_partition.bring_forward(device, tape, waiting, roots)
        if front is None or not front.entries:
            return front is not None
    found = _found(device, tape, front, roots, attempt.compiled)
    if found is None:
        return False
    schedule, seen = found
    if launcher.arrange is not None and launcher.arrange(schedule, tape):
        return False
    numbers = (*[tape.numbers[i] for i in schedule.cut.numbers],)
    if not attempt.compiles:
        _refuse_to_hold(schedule, numbers, seen.values, cause, attempt)
    _tracing.add(traced - int(attempt.seconds * 1e9))
    if device.last_schedule is not None:
        device.last_schedule.followed_by = schedule
    ends, unheld = succeeded(schedule, tape, seen, device)
    if schedule.liveness is not None:
        ends = chain(ends, schedule.liveness.learned(schedule.live, seen.values))
    afterwards = None
    unchanged = unchanged_by(tape, seen.length)
    try:
        if schedule.program is None:
            run_through(chain(unchanged, ends))
        else:
            afterwards = inspect(schedule, tape) if inspect is not None else None
            first = schedule.program is attempt.compiled
            around = Around(before=unchanged, after=ends)
            _run(schedule.program, schedule, tape, seen.values, numbers, cause, around, first)
    except Changed:
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


def _found(
    device: Device, tape: Tape, front: Front | None, roots: tuple[int, ...] | None, compiled: Program | None
) -> tuple[Schedule, Seen] | None:
    """The schedule of the `tape`, or its `front`, with what it follows from; `None` if the tape has changed meanwhile.

    Where garbage could decide, it is collected: what is young, which takes a millisecond, and then all.
    """
    seen = look(tape, front)
    schedule = None if seen is None else find(device, tape, seen, roots, compiled=compiled)
    for generation, counter in enumerate(_collected, 1):
        if schedule is None and seen is not None:
            counter.value += 1
            gc.collect(generation)
            seen = look(tape, front)
            schedule = None if seen is None else find(device, tape, seen, roots, generation == _ALL, compiled)
    return None if seen is None or schedule is None or len(tape.code) != seen.length else (schedule, seen)


def _refuse_to_hold(
    schedule: Schedule, numbers: tuple[Any, ...], values: list[Value], cause: Cause, attempt: Attempt
) -> None:
    """Raises `NotReady` where the program would hold the lock while it is compiled, or waits for its turn."""
    program, part = schedule.program, schedule.cut
    if program is None or launcher.describe is not None:
        return
    if not program.compiled_for(numbers):
        buffers = [values[slot].buffer for slot in part.inputs]
        raise NotCompiled(program, numbers, buffers, cause, lambda: lines_of(part, schedule.lines))
    if not is_turn(program):
        raise NotItsTurn(program, attempt.compiled)


def _run(
    program: Program,
    schedule: Schedule,
    tape: Tape,
    values: list[Value],
    numbers: tuple[Any, ...],
    cause: Cause,
    around: Around,
    first: bool,
) -> None:
    part = schedule.cut
    if user_donation.marked:
        user_donation.refuse_taken([values[slot] for slot in part.inputs])
    outputs = [values[slot] for slot in part.outputs]
    # They may outlive the tape, and must not keep all the others alive through it.
    settled = chain(stores(outputs, "line", schedule.output_lines), stores(outputs, "tape", repeat(None)))
    launch(
        program,
        [values[slot] for slot in part.inputs],
        outputs,
        numbers,
        [tape.draws[i] for i in part.draws],
        cause,
        lambda: lines_of(part, schedule.lines),
        Around(around.before, chain(settled, around.after)),
        schedule.counts,
        first,
    )
    _graph_size.add(len(part.positions))


def relieve(device: Device) -> None:
    """Keeps a tape from growing without end: drops what nobody needs any more, and runs it if much is left."""
    or_dropped(partial(_relieve, device))


def _relieve(device: Device) -> None:
    with LOCK:
        _evaluate_for_room(device, ())
        if len(device.tape.values) > TAPE_LIMIT // 2:
            metrics.count("TapeFull")
            _evaluate_for_room(device, None)


def _evaluate_for_room(device: Device, slots: tuple[int, ...] | None) -> None:
    while not _evaluate(device, device.tape, slots, Cause.FULL, _HOLDING):
        pass
