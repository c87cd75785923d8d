"""Run programs: every program starts here, as one `Step`.

A tape, an operation that runs at once, a replay, a pack and a cached graph all come here. Nothing here waits for a
result (`in_flight`).
"""

import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import attrgetter

import jax
import numpy as np

from .. import config, dtypes, metrics
from ..atomic import run_through, without_collecting
from ..compile.program import Program, Ready
from ..errors import ExecutionError
from ..ir.side_effects import ASSERTION
from ..ir.tape import Failed, Value, set_buffer, set_tape
from ..metrics import accounts, events, samples, user_lines
from ..metrics.events import Cause
from ..metrics.observers import observers
from ..metrics.user_lines import Line
from ..runtime import buffers as client
from ..runtime import device_memory, host_malloc, platform
from ..runtime.abstract_buffer import Placeholder
from ..tensor import live_counters
from ..tensor.random_state import keys_of
from .collective_consistency import compare_before_start, note_start
from .compile_progress import report_progress
from .in_flight import (
    COUNTED,
    MOST_REPORTS,
    Flight,
    device_lock_wait,
    forget_ended,
    free_memory,
    leave_ended,
    raise_failed,
    wait_for,
)
from .in_flight import by_target as flights
from .in_flight import latest as latest_flight
from .in_flight import reporting as reporting_flights
from .memory_admission import is_left as is_memory_left
from .memory_admission import oversized_refusal
from .memory_admission import refusal as memory_refusal
from .run_failures import compile_error, run_error, save_hlo
from .step import SourceLines, Step
from .waits_among_processes import wait_for_launch

_executed = metrics.counter("ExecuteComputation")
_cached = metrics.counter("CachedCompile")
_executing = metrics.metric("ExecuteTime")
_executing_eagerly = metrics.metric("EagerOpExecuteTime")
# The same of programs for several devices behind one ordinal.
_replicated = metrics.counter("ExecuteReplicated")
_replicating = metrics.metric("ExecuteReplicatedTime")

# How many programs were started.
_step = 0

# A compilation that takes more seconds leaves memory that is worth returning to the system.
_LEAVES_MEMORY = 1.0

_buffer = attrgetter("buffer")


def run(step: Step, ready: Ready | None = None) -> None:
    """Start the program of `step` on the buffers of its inputs, and give the buffers of its results to its outputs.

    `ready` is the executable for its numbers, if the caller has looked. The caller holds the lock. An interrupt takes
    effect before anything has begun, or when all is done: the run, and what the step says is to change with it.
    """
    program, inputs = step.program, step.inputs
    keys = keys_of(step.draws) if step.draws else None
    if observers.describe_run is not None:
        given = observers.describe_run(step)
        run_through(chain(step.before, map(set_buffer, step.outputs, given), step.after))
        return
    try:
        buffers = [*map(_buffer, inputs)]
        if ready is None:
            ready = program.ready(step.numbers)
        _start(step, buffers, keys, ready)
    except BaseException as error:
        for value in inputs:
            if isinstance(value.tape, Failed):  # another run has lost it since it was recorded with
                raise ExecutionError(f"This step needs a value that is gone: {value.tape.why}") from error
        if program.donated:
            _lose(inputs, str(error) or type(error).__name__)
        raise
    live_counters.buffers.value += len(step.outputs)
    for counter, count in step.counts:
        counter.value += count


def _start(step: Step, buffers: list[jax.Array], keys: np.ndarray | None, ready: Ready | None) -> None:
    global _step
    program, numbers = step.program, step.numbers
    if platform.forked:
        platform.refuse_fork()
    is_exchange = len(program.target.processes) > 1
    if is_exchange:
        compare_before_start(program, _step, step.source_lines)
    runs_again = ready is not None
    if ready is None:
        _compile(program, buffers, numbers, step.cause, step.source_lines())
        ready = program.ready(numbers)
    elif not step.is_first:
        _cached.value += 1
    if not program.fits:
        _look_for_room(program, numbers, step.source_lines, buffers)
    if program.is_limited:
        wait_for_launch(program.starts)
    begins = time.perf_counter_ns()
    flight, ends = _enter(step, runs_again)
    start = time.perf_counter_ns()
    outputs = list[jax.Array]()
    reported = _reported(step, flight, outputs) if program.reports else ()
    try:
        try:
            started = program.start(buffers, numbers, keys, ready)
            without_collecting(_run(step, started, outputs, ends, reported))
        except (TypeError, jax.errors.JaxRuntimeError):
            # Under XLA_USE_BF16, set after some values were already on the device, those have another dtype.
            started = program.start(_converted(program, buffers), numbers, keys, ready)
            without_collecting(_run(step, started, outputs, ends, reported))
    except BaseException as error:
        if not outputs:
            run_through(step.undo)
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise run_error(program, numbers, error, _step, step.source_lines(), buffers) from error
        raise
    if is_exchange:
        note_start(program, step.source_lines)
    took = time.perf_counter_ns() - start
    if program.bytes >= COUNTED and program.target.is_host:
        device_memory.note_need(program.target.device, program.needs)
    times = _executing if observers.run_call is None else _executing_eagerly
    samples.add_each(((device_lock_wait, start - begins), (times, took)))
    if program.is_spread:
        _replicated.value += 1
        _replicating.add(took)
    _step += 1
    if len(flight.reports) > MOST_REPORTS:
        raise_failed(flight)
    if events.closely:
        _tell_run(step, start)


def _enter(step: Step, runs_again: bool) -> tuple[Flight, list[jax.Array]]:
    """Add a run to those of its target, once there is room for the memory that it takes on the host.

    Returns the runs of the target, and the list for the small outputs that show when this run has ended.
    """
    program = step.program
    by_target = flights
    flight = by_target.get(program.target) or by_target.setdefault(program.target, Flight())
    is_large = program.bytes >= COUNTED
    is_counted = is_large and program.target.is_host
    if is_large:
        leave_ended(flight)
        forget_ended(flight.running)
    if is_counted:
        free_memory(flight.running, program.allocates)
        if runs_again:
            host_malloc.keep_memory(program.allocates)
    _executed.value += 1
    ends = list[jax.Array]()
    flight.started.append((_step, ends, program, step.numbers, step.source_lines))
    latest_flight.append(flight)
    if is_counted:
        flight.running.append((program.allocates, ends))
    return flight, ends


def _lose(inputs: Sequence[Value], why: str) -> None:
    """Mark the inputs that a failed program took without giving results: each use of one raises with the reason."""
    lost = [value for value in inputs if value.buffer is not None and value.buffer.is_deleted()]
    run_through(chain(map(set_tape, lost, repeat(Failed(why))), map(set_buffer, lost, repeat(None))))


def _run(
    step: Step,
    started: Iterator[Sequence[jax.Array]],
    outputs: list[jax.Array],
    ends: list[jax.Array],
    reported: Iterable[object],
) -> Iterator[object]:
    """Return all of a run: no Python from its start to its end. Each call reads what the one before it has left."""
    return chain(
        step.before,
        map(outputs.extend, started),
        map(set_buffer, step.outputs, outputs),
        map(ends.append, map(outputs.__getitem__, step.program.ends)),
        reported,
        step.after,
    )


def _look_for_room(
    program: Program, numbers: Sequence[float | int], source_lines: SourceLines, buffers: Sequence[object]
) -> None:
    """Raise `OutOfMemory` before the first run of a program for which there is no room."""
    target = program.target
    if not is_memory_left(program.allocates, target):
        # Running programs may be about to free memory, and so may a collection of garbage.
        flight = flights.get(target)
        if flight is not None:
            wait_for(flight)
        gc.collect()
        host_malloc.release_memory()
        if not is_memory_left(program.allocates, target):
            origin = user_lines.summary(source_lines()) + save_hlo(program, numbers)
            raise memory_refusal(program, numbers, _step, origin)
    is_planned = any(isinstance(buffer, Placeholder) for buffer in buffers)  # which is refused when it starts
    if program.oversized is not None and config.checks_memory() and not is_planned:
        raise oversized_refusal(program, _step, user_lines.summary(source_lines()))
    program.fits = True


def _tell_run(step: Step, start: int) -> None:
    seconds = (time.perf_counter_ns() - start) * 1e-9
    frames = user_lines.user_lines(events.depth)
    numbers = tuple(step.numbers)
    events.emit(events.Execution(step.program, numbers, step.cause, frames, start * 1e-9, seconds, step.scopes))


def _reported(step: Step, flight: Flight, outputs: list[jax.Array]) -> Iterable[object]:
    """Queue the results of assertions until the next wait, when it is run through."""
    program, numbers = step.program, step.numbers
    reporting_flights.add(flight)
    operations, where = program.graph.operations, step.source_lines()
    reporting = [operations[index] for _, index in program.reports]
    plans = [each.plan for each in reporting]
    said = [int(numbers[each.first_number]) if each.plan.effect is ASSERTION else -1 for each in reporting]
    found = [where[index] if index < len(where) else None for _, index in program.reports]
    taken = map(outputs.__getitem__, [place for place, _ in program.reports])
    return map(flight.reports.append, zip(taken, plans, found, said, strict=True))


def prepare(
    program: Program,
    numbers: Sequence[float | int],
    cause: Cause,
    source_lines: SourceLines,
    buffers: Sequence[object] = (),
) -> bool:
    """Compile what `run` with these numbers, and these `buffers` if known, would compile; whether it had to."""
    if program.compiled_for(numbers):
        return False
    _compile(program, buffers, numbers, cause, source_lines())
    return True


def _compile(
    program: Program,
    buffers: Sequence[object],
    numbers: Sequence[float | int],
    cause: Cause,
    source_lines: tuple[Line | None, ...],
) -> None:
    start = time.perf_counter()
    compilation = events.Compilation(
        program=program,
        numbers=tuple(numbers),
        lines=source_lines,
        names=events.names_of(buffers),
        cause=cause,
        frames=user_lines.user_lines(events.ALL_FRAMES),
        start=start,
        seconds=0.0,
        sizes=None,
    )
    events.ask(compilation)
    try:
        progress = report_progress(len(program.graph.operations), compilation.frames)
        with accounts.Spent(accounts.COMPILE), progress, host_malloc.compiling():
            sizes = program.compile_for(numbers)
    except jax.errors.JaxRuntimeError as error:
        raise compile_error(program, numbers, error, _step, source_lines) from error
    seconds = time.perf_counter() - start
    if seconds > _LEAVES_MEMORY:
        host_malloc.release_memory()
    events.emit(compilation._replace(seconds=seconds, sizes=sizes, shared=program.shared))


def _converted(program: Program, buffers: Sequence[jax.Array]) -> list[jax.Array]:
    for buffer in buffers:
        if isinstance(buffer, Placeholder):
            buffer.refuse()
    wanted = [dtypes.to_jax(dtypes.on_device(spec.dtype)) for spec in program.graph.inputs]
    if all(b.dtype == dtype for b, dtype in zip(buffers, wanted, strict=True)):
        raise
    return list(map(client.converted, buffers, wanted))
