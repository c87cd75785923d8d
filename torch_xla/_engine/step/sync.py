"""The path of a step, top to bottom: from recorded operations to buffers.

`schedule` finds the program of a tape by its passes, `residual_ops` replaces the tape, `executor` runs the `Step`.
"""

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice, repeat
from operator import attrgetter
from threading import get_ident
from typing import Any, NamedTuple

from .. import config, metrics
from ..atomic import run_through
from ..compile.program import Program
from ..compile.source_metadata import scopes_at
from ..errors import OutOfMemory
from ..ir.tape import ALONE, Failed, Front, Tape, Value, refuse_running, set_line, set_tape
from ..metrics import events, samples
from ..metrics.events import Cause
from ..metrics.observers import observers
from ..metrics.user_lines import user_lines
from ..runtime import platform
from ..tensor import live_counters, sharding_annotations
from ..tensor.device import LOCK, Device
from ..tensor.spare_capacity import entered
from .donation import Donor, refuse_taken
from .executor import run as run_step
from .failed_ops import prune
from .growing_sizes import placed_in_rooms
from .in_flight import COUNTED
from .in_flight import wait as wait_for_programs
from .liveness import look
from .partition import bring_forward, front_of, this_thread
from .partition import others as other_threads
from .residual_ops import carry_over, record_behind
from .schedule import find, is_common
from .step import ENDED, Changed, Schedule, Seen, Step, tape_after, unchanged
from .unlocked_compile import (
    FIRST,
    HOLDING,
    Attempt,
    NotCompiled,
    NotItsTurn,
    NotReady,
    is_turn,
    under_lock,
    wait_for_turn,
    when_ready,
)

_tracing = metrics.metric("LazyTracing")
# Garbage of up to this generation is all.
_OLDEST = 2
_collected = metrics.counter("CollectedYoungGarbage"), metrics.counter("CollectedGarbage")
_graph_size = metrics.metric("TensorsGraphSize", metrics.Unit.SCALAR)

_tape: Callable[[Device], Tape] = attrgetter("tape")

# A tape with more values than this is searched for values that are not needed any more.
TAPE_LIMIT = 100_000


class Request(NamedTuple):
    """The operations that an evaluation is to run, and why."""

    cause: Cause
    roots: tuple[int, ...] | None = None  # the slots of the values that are read; None: all that are held
    is_own: bool = False  # leave what other threads have recorded to their evaluations
    for_transfer: bool = False  # a transfer follows, whose event reports this evaluation


_ALL, _OWN = Request(Cause.SYNC), Request(Cause.SYNC, is_own=True)


def sync_device(device: Device, wait: bool = False) -> None:
    """Start the computation of all recorded values of `device` that are still held, and begin a new tape."""
    sync_step(device, wait, _ALL)


def sync_step(device: Device, wait: bool = False, request: Request = _OWN) -> None:
    """Start the computation of the values that this thread has recorded on `device`, and begin a new tape."""
    if device.tape.code or device.marks:
        try:
            _sync(device, request)
        except Exception as error:
            prune(error, (device,))
            raise
    if wait or (config.is_set(config.SYNC_WAIT) and config.sync_wait()):
        wait_for_programs([device.target.device])


def _sync(device: Device, request: Request) -> None:
    attempt = HOLDING if LOCK._is_owned() else FIRST  # type: ignore[attr-defined]
    if device.marks:
        with LOCK:
            sharding_annotations.keep(device)
    if isinstance(device.last_schedule, Schedule):
        program = device.last_schedule.program  # most likely this evaluation runs it again
        if program is not None and (program.is_limited or program.bytes >= COUNTED):
            wait_for_turn(program)
    try:
        with LOCK:
            _evaluate_all(device, request, attempt)
        return
    except NotReady as found:
        needed = [found.do_it]
    when_ready(partial(_evaluate_all, device, request), needed)


def _evaluate_all(device: Device, request: Request, attempt: Attempt) -> None:
    while (tape := device.tape).code and not _evaluate(device, tape, request, attempt):
        pass


def materialise(value: Value) -> Any:
    """Return the buffer of `value`: runs what it needs, and nothing else, if it is pending."""
    if value.buffer is None:
        compute((value,))
    return value.buffer


def compute(values: Sequence[Value], of_transfer: bool = False) -> None:
    """Start what the `values` need, and nothing else: one program for those on one device.

    With `of_transfer` a transfer follows, whose event reports this evaluation.
    """
    while True:
        try:
            return under_lock(partial(_compute, values, of_transfer))
        except Exception as error:  # raised again, unless something else had no room
            devices = {value.device for value in values}
            if not isinstance(error, OutOfMemory) or not _reads_alone_now(devices):
                prune(error, devices)
                raise


def _reads_alone_now(devices: Iterable[Device]) -> bool:
    """Let reads run nothing that they do not need, until the step ends. Return whether any has run more."""
    with LOCK:
        tapes = [device.tape for device in devices if device.tape.rest != ALONE]
        for tape in tapes:
            tape.rest = ALONE
    return bool(tapes)


def _compute(values: Sequence[Value], of_transfer: bool, attempt: Attempt) -> None:
    while roots := _pending(values):
        for (device, tape), slots in roots.items():
            if not _evaluate(device, tape, Request(Cause.READ, tuple(slots), True, of_transfer), attempt):
                break  # slots may be others now


def _pending(values: Sequence[Value]) -> dict[tuple[Device, Tape], list[int]]:
    """Return the slots of those of the `values` that were not computed, on the tapes where they are."""
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
                refuse_running()
            found.setdefault((device, tape), []).append(slot)
    return found


def _evaluate(device: Device, tape: Tape, request: Request, attempt: Attempt) -> bool:
    """Run what the `request` asks for of the `tape` of `device`.

    False if nothing was run because the tape has changed meanwhile, or was put in order.

    Garbage may be collected, with finalizers that may record or even sync. Raises `NotReady` where the attempt may
    not compile.
    """
    roots = request.roots
    is_timed = events.closely or (events.watched and not request.for_transfer and roots)
    start = time.perf_counter() - attempt.seconds if is_timed else 0.0
    if events.guarded:
        frames = user_lines(events.depth)
        events.ask(events.Evaluation(request.cause, device.index, frames, time.perf_counter(), 0.0, 0))
    traced = time.perf_counter_ns() - tape.started
    front = None
    # The usual tape is that of one thread, which has evaluated before: then no other thread has a part of it.
    if request.is_own and not (this_thread.is_known and len(tape.turns) == 1 and tape.turns[0][1] == get_ident()):
        waiting = other_threads(tape)
        if waiting and not is_common(device, tape.code):
            front = front_of(tape, waiting, roots)
            if front is None:
                bring_forward(device, tape, waiting, roots)
            if front is None or not front.entries:
                return front is not None
    seen = look(tape, front)
    schedule = None if seen is None else find(device, tape, seen, roots, compiled=attempt.compiled)
    if seen is not None and schedule is None:
        seen, schedule = _found_without_garbage(device, tape, front, request, attempt)
    if seen is None or schedule is None or len(tape.code) != seen.length:
        return False
    if observers.divide_inputs is not None and observers.divide_inputs(schedule, tape):
        return False
    inspected = _run(device, tape, request, attempt, schedule, seen)
    if inspected is None:
        return False
    samples.add_each(
        ((_tracing, traced - int(attempt.seconds * 1e9)), (_graph_size, len(schedule.cut.positions)))
        if schedule.program is not None
        else ((_tracing, traced - int(attempt.seconds * 1e9)),)
    )
    if start:
        seconds, operations = time.perf_counter() - start, len(schedule.cut.positions)
        frames = user_lines(events.depth)
        done = request.cause, device.index, frames, start, seconds, operations, request.for_transfer
        events.emit(events.Evaluation(*done))
    inspected()
    return True


def _found_without_garbage(
    device: Device, tape: Tape, front: Front | None, request: Request, attempt: Attempt
) -> tuple[Seen | None, Schedule | None]:
    """Find the schedule where garbage could decide: collect young garbage, which takes a millisecond, and then all."""
    seen: Seen | None = None
    for generation, counter in enumerate(_collected, 1):
        counter.value += 1
        gc.collect(generation)
        seen = look(tape, front)
        if seen is None:
            break
        schedule = find(device, tape, seen, request.roots, generation == _OLDEST, attempt.compiled)
        if schedule is not None:
            return seen, schedule
    return seen, None


def _run(
    device: Device, tape: Tape, request: Request, attempt: Attempt, schedule: Schedule, seen: Seen
) -> Callable[[], object] | None:
    """Run the program of the schedule, and replace the tape. `None` if the tape has changed meanwhile.

    Returns what is to be called when the run was reported: it shows the run to an inspector.
    """
    program, part, values = schedule.program, schedule.cut, seen.values
    numbers = (*map(tape.numbers.__getitem__, part.numbers), *schedule.length)
    ready = None if program is None else program.ready(numbers)
    if program is not None and not attempt.compiles and observers.describe_run is None:
        if ready is None or program.is_limited or program.bytes >= COUNTED:  # else it may start at once
            _refuse_early_start(program, numbers, schedule, seen, request, attempt)
    if isinstance(device.last_schedule, Schedule):
        device.last_schedule.followed_by = schedule
    before, ends, undo, meanwhile, recorded_again = _around(device, tape, schedule, seen)
    inspected: Callable[[], object] = tuple  # does nothing
    schedule.has_run = False
    try:
        if program is None:
            run_through(chain(before, ends))
        else:
            if observers.inspect_step is not None:
                inspected = observers.inspect_step(schedule, tape)
            outputs = [*map(values.__getitem__, part.outputs)]
            # The results may outlive the tape, and must not keep all the others alive through it.
            after = chain(map(set_line, outputs, schedule.output_lines), map(set_tape, outputs, repeat(None)), ends)
            results: Sequence[Value] = outputs
            if schedule.rooms:
                results, padded = placed_in_rooms(outputs, schedule.rooms)
                after = chain(after, padded)
            step = Step(
                program,
                [*map(values.__getitem__, part.inputs)],
                results,
                numbers,
                [*map(tape.draws.__getitem__, part.draws)],
                request.cause,
                schedule.source_lines,
                before,
                after,
                undo,
                schedule.counts,
                program is attempt.compiled,
            )
            if events.closely:
                step.scopes = scopes_at(part.positions, tape.scopes)
            if Donor.exists:
                refuse_taken(step.inputs)
            run_step(step, ready)
    except Changed:
        return None
    finally:
        for recorded in meanwhile:
            record_behind(device.tape, recorded, device)
    schedule.has_run = True
    live_counters.values.value += schedule.made + recorded_again
    device.last_schedule = schedule
    return inspected


def _around(
    device: Device, tape: Tape, schedule: Schedule, seen: Seen
) -> tuple[Iterable[Any], Iterable[Any], Iterable[object], list[Tape], int]:
    """Return the stores before a run of the schedule, those after it, what takes back the former, a list and a number.

    A program may call a function on the host, and what that records belongs to the next step. It is recorded on the
    tape that follows. If this has operations already, which may need results of the program, or if the run fails, it is
    recorded on another tape, and the list then has that one. The number is that of the values that are recorded again
    although they are not held.
    """
    following = tape_after(schedule, device)
    moved: tuple[Iterable[object], int] = (), 0
    if schedule.kept or seen.behind or tape.scopes:
        moved = carry_over(schedule, tape, following, seen, device)
    during = tape_after(None, device) if following.code else following
    begun, meanwhile, names = list[Device](), list[Tape](), repeat("tape")
    # The stores of `end_of` without its call: each sync does this.
    ends = map(setattr, (device, tape, tape, tape, tape), ENDED, (during, True, [], [], {}))
    before = chain(unchanged(tape, seen.length), map(begun.append, (device,)), islice(ends, 2))
    undo = chain(
        map(meanwhile.append, map(_tape, begun)),
        map(setattr, begun, names, repeat(tape)),
        map(setattr, map(_tape, begun), repeat("ended"), repeat(False)),
    )
    after = chain(moved[0], ends)
    if during is not following:
        after = chain(after, map(meanwhile.append, map(_tape, begun)), map(setattr, begun, names, repeat(following)))
    if schedule.liveness is not None:
        after = chain(after, schedule.liveness.learned(schedule.live, seen.values))
    if schedule.cuts:
        after = chain(map(set_tape, map(seen.values.__getitem__, schedule.cuts), repeat(None)), after)
    return before, after, undo, meanwhile, moved[1]


def _refuse_early_start(
    program: Program, numbers: Sequence[float | int], schedule: Schedule, seen: Seen, request: Request, attempt: Attempt
) -> None:
    """Raise if the program is not compiled, or has to wait for others: both are done without the lock."""
    if not program.compiled_for(numbers):
        buffers = [seen.values[slot].buffer for slot in schedule.cut.inputs]
        raise NotCompiled(program, numbers, buffers, request.cause, schedule.source_lines)
    if not is_turn(program):
        raise NotItsTurn(program, attempt.compiled)


def relieve(device: Device) -> None:
    """Keep a tape from growing without end: drop values that are not needed any more, and run it if many are left."""
    try:
        with LOCK:
            _evaluate_for_room(device, ())
            if len(device.tape.values) > TAPE_LIMIT // 2:
                metrics.count("TapeFull")
                _evaluate_for_room(device, None)
    except Exception as error:
        prune(error, (device,))
        raise


def _evaluate_for_room(device: Device, slots: tuple[int, ...] | None) -> None:
    while not _evaluate(device, device.tape, Request(Cause.FULL, slots), HOLDING):
        pass
