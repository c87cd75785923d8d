"""Run programs, wait for them on request, and name the step and the user's lines when one fails."""

import gc
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import jax
import numpy as np

from .. import dtypes, metrics
from ..atomic import run_through, without_collecting
from ..compat.names import jax as private
from ..compile.program import Program, blame
from ..errors import ExecutionError, OutOfMemory
from ..ir.side_effects import ASSERTION, EffectKind, message_of
from ..ir.tape import Value, set_buffer
from ..lowering.machinery import device_value_checks, registry
from ..metrics import events, user_lines
from ..metrics.events import Cause
from ..metrics.user_lines import Line
from ..runtime import buffers as client
from ..runtime import device_memory, host_malloc
from ..runtime.abstract_buffer import Placeholder
from ..runtime.platform import refuse_fork
from . import collective_consistency, compile_progress, device_waits, in_flight, memory_admission
from .failing_hlo import tell_hlo
from .in_flight import Flight, SourceLines

_executed = metrics.counter("ExecuteComputation")
_cached = metrics.counter("CachedCompile")
_executing = metrics.metric("ExecuteTime")
# The same of programs for several devices behind one ordinal.
_replicated = metrics.counter("ExecuteReplicated")
_replicating = metrics.metric("ExecuteReplicatedTime")

_step = 0


# That of the program that was started last.
_latest: Flight | None = None

# So many reports may wait for somebody who waits. A program that never does is looked at then.
_MOST_REPORTS = 4096
# A compilation of so many seconds leaves memory that is worth returning.
_LEAVES_MEMORY = 1.0


@dataclass(slots=True)
class Around:
    """What happens together with a run, so that nobody who is interrupted sees the one without the other.

    Each is an iterator of C's that stores something (`atomic`) when it is run through.
    """

    before: Iterable[Any] = ()  # in front of the run
    after: Iterable[Any] = ()  # behind it, when the values have their buffers
    undo: Iterable[Any] = ()  # what was done before a run that failed


ALONE = Around()


def run(
    program: Program,
    buffers: list[jax.Array],
    numbers: Sequence[float | int],
    keys: np.ndarray | None,
    values: Sequence[Value],
    cause: Cause,
    source_lines: SourceLines,
    around: Around = ALONE,
    is_first: bool = False,
) -> None:
    """Starts `program`, and gives its outputs to `values`. `cause` and `source_lines` are for listeners and errors.

    With `is_first` it was compiled for this run: it is not counted as found.
    An interrupt takes effect before it starts, or when the values have their buffers: it may have taken its inputs'.
    """
    global _step
    refuse_fork()
    is_exchange = len(program.target.processes) > 1
    if is_exchange:
        collective_consistency.before(program, _step, source_lines)
    runs_again = program.compiled_for(numbers)
    if not runs_again:
        _compile(program, buffers, numbers, cause, source_lines())
    elif not is_first:
        _cached.value += 1
    if not program.fits:
        _look_for_room(program, numbers, source_lines)
    if program.is_limited:
        device_waits.for_turn(program.starts)
    start, ends, flight = _enter(program, numbers, source_lines, runs_again)
    outputs = list[jax.Array]()
    reported = _reported(program, flight, outputs, numbers, source_lines) if program.reports else ()
    try:
        try:
            started = program.start(buffers, numbers, keys)
            without_collecting(_run(program, started, values, outputs, ends, reported, around))
        except (TypeError, jax.errors.JaxRuntimeError):
            # Under XLA_USE_BF16, set after some values were already on the device, those have another dtype.
            started = program.start(_converted(program, buffers), numbers, keys)
            without_collecting(_run(program, started, values, outputs, ends, reported, around))
    except BaseException as error:
        if not outputs:
            run_through(around.undo)
        if isinstance(error, jax.errors.JaxRuntimeError):
            found = _failure_of(program, numbers, error, f"step {_step}", source_lines())
            if isinstance(found, ExecutionError) and any(buffers[index].is_deleted() for index in program.donated):
                found = type(found)(str(found).replace(_ALL_IS_LEFT, _GIVEN_IS_LOST))
            raise _with_callers(found, program, error) from error
        raise
    if is_exchange:
        collective_consistency.after(program, source_lines)
    took = time.perf_counter_ns() - start
    _executing.add(took)
    if program.target.is_spread:
        _replicated.value += 1
        _replicating.add(took)
    _step += 1
    if len(flight.reports) > _MOST_REPORTS:
        _raise_failed(flight)
    if events.closely:
        _tell_run(program, numbers, cause, start)


def _enter(
    program: Program, numbers: Sequence[float | int], source_lines: SourceLines, runs_again: bool
) -> tuple[int, list[jax.Array], Flight]:
    """Puts a program among those of its target, when there is room for what it takes on the host.

    Gives the time by then, the list for what tells that the program has ended, and the others.
    """
    global _latest
    flight = _latest = in_flight.by_target.get(program.target) or in_flight.by_target.setdefault(
        program.target, Flight()
    )
    is_large = program.bytes >= in_flight.COUNTED
    is_counted = is_large and program.target.is_host
    if is_large:
        in_flight.leave_ended(flight)
        in_flight.forget_ended(flight.running)
    begins = time.perf_counter_ns()
    if is_counted:
        device_memory.note_need(program.target.device, program.needs)
        in_flight.free_memory(flight.running, program.allocates)
        if runs_again:
            host_malloc.keep_memory(program.allocates)
    start = time.perf_counter_ns()
    in_flight.device_lock_wait.add(start - begins)
    _executed.value += 1
    ends = list[jax.Array]()
    flight.started.append((_step, ends, program, numbers, source_lines))
    if is_counted:
        flight.running.append((program.allocates, ends))
    return start, ends, flight


def _look_for_room(program: Program, numbers: Sequence[float | int], source_lines: SourceLines) -> None:
    """Raises `OutOfMemory` before the first run of a program for which there is no room."""
    target = program.target
    if not memory_admission.is_left(program.allocates, target):
        # What is still running may be about to give its memory back, and so may garbage.
        flight = in_flight.by_target.get(target)
        if flight is not None:
            _wait(flight)
        gc.collect()
        host_malloc.release_memory()
        if not memory_admission.is_left(program.allocates, target):
            origin = user_lines.summary(source_lines()) + tell_hlo(program, numbers)
            raise memory_admission.refusal(program, numbers, _step, origin)
    program.fits = True


def _tell_run(program: Program, numbers: Sequence[float | int], cause: Cause, start: int) -> None:
    seconds = (time.perf_counter_ns() - start) * 1e-9
    frames = user_lines.user_lines(events.depth)
    events.emit(events.Execution(program, tuple(numbers), cause, frames, start * 1e-9, seconds))


def _run(
    program: Program,
    started: Iterator[Sequence[jax.Array]],
    values: Sequence[Value],
    outputs: list[jax.Array],
    ends: list[jax.Array],
    reported: Iterable[Any],
    around: Around,
) -> Iterator[Any]:
    """All of a run: no Python from its start to its end. Each step reads what the one before it has left."""
    return chain(
        around.before,
        map(outputs.extend, started),
        map(set_buffer, values, outputs),
        map(ends.append, map(outputs.__getitem__, program.ends)),
        reported,
        around.after,
    )


def _reported(
    program: Program,
    flight: Flight,
    outputs: list[jax.Array],
    numbers: Sequence[float | int],
    source_lines: SourceLines,
) -> Iterable[Any]:
    """Keeps what assertions found until somebody waits, when it is run through."""
    operations, where = program.graph.operations, source_lines()
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
    buffers: Sequence[Any] = (),
) -> bool:
    """Compiles what `run` with these numbers, and these `buffers` if known, would compile; whether it had to."""
    if program.compiled_for(numbers):
        return False
    _compile(program, buffers, numbers, cause, source_lines())
    return True


def _compile(
    program: Program,
    buffers: Sequence[Any],
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
        with compile_progress.told(len(program.graph.operations), compilation.frames), host_malloc.compiling():
            sizes = program.compile_for(numbers)
    except jax.errors.JaxRuntimeError as error:
        raise _refusal_of(program, numbers, error, source_lines) from error
    seconds = time.perf_counter() - start
    if seconds > _LEAVES_MEMORY:
        host_malloc.release_memory()
    events.emit(compilation._replace(seconds=seconds, sizes=sizes, shared=program.shared))


def wait(devices: Container[jax.Device] | None = None) -> None:
    """Waits until every program started so far has ended, on any device or on one of these at least.

    Raises what one of them raised.
    """
    start = time.perf_counter()
    for target, flight in list(in_flight.by_target.items()):
        if devices is None or any(device in devices for device in target.devices):
            _wait(flight)
            _raise_failed(flight)
    in_flight.tell_wait(start, True)


def _wait(flight: Flight) -> None:
    while True:
        try:
            first = flight.started[0]
        except IndexError:
            in_flight.forget_ended(flight.running)
            return
        step, ends, program, numbers, source_lines = first
        try:
            device_waits.until_ready(in_flight.still_there(ends))
            if program.graph.effects:
                client.wait_for_callbacks()
        except jax.errors.JaxRuntimeError as error:
            in_flight.leave(flight.started, first)
            raise _failure_of(program, numbers, error, f"step {step}", source_lines()) from error
        in_flight.leave(flight.started, first)


def has_reports() -> bool:
    """Whether a program that was started reports what nobody has looked at."""
    return any([flight.reports for flight in list(in_flight.by_target.values())])


def raise_failed_assertions(device: jax.Device) -> None:
    """Raises what the first failed assertion of a program started on `device` says; waits for all of them."""
    for target, flight in list(in_flight.by_target.items()):
        if flight.reports and device in target.devices:
            _raise_failed(flight)


def _raise_failed(flight: Flight) -> None:
    while flight.reports:
        try:
            first = flight.reports[0]
        except IndexError:
            return  # another thread looks at the last
        array, plan, line, message = first
        device_waits.until_ready([array])
        found = client.get(array)
        if plan.effect is not None and plan.effect.kind is EffectKind.CHECK:
            error = device_value_checks.complaint(plan, found, None if line is None else user_lines.text(line))
        else:
            error = None if found else _broken(message_of(message), line)
        if error is not None:
            flight.reports.clear()  # on the CPU nothing that comes later would have been looked at
            raise error
        in_flight.leave(flight.reports, first)


def _broken(message: str, line: Line | None) -> RuntimeError:
    return RuntimeError(f"{message}\n  asserted at {user_lines.text(line)}" if line is not None else message)


def last_ends() -> list[Any] | None:
    """Small outputs of the program started last: they are there when it has ended. `None` before the first."""
    return _latest.started[-1][1] if _latest is not None and _latest.started else None


def _failure_of(
    program: Program,
    numbers: Sequence[float | int],
    error: Exception,
    where: str,
    source_lines: Sequence[Line | None],
) -> RuntimeError | KeyboardInterrupt:
    if private.is_interrupt(error):
        return KeyboardInterrupt()
    return device_waits.failure_of(error) or failure(
        error, where, user_lines.summary(source_lines) + tell_hlo(program, numbers), program, numbers
    )


def _refusal_of(
    program: Program, numbers: Sequence[float | int], error: Exception, source_lines: Sequence[Line | None]
) -> RuntimeError | KeyboardInterrupt:
    """What a user sees of an error of XLA's compiler: with the operation that it cannot do, if it is one."""
    found = _failure_of(program, numbers, error, f"the compilation of step {_step}", source_lines)
    if type(found) is not ExecutionError:
        return found
    with (
        compile_progress.told(len(program.graph.operations), user_lines.user_lines(events.ALL_FRAMES)),
        host_malloc.compiling(),
    ):
        culprit = program.culprit(numbers)
    if culprit is not None:
        found = ExecutionError(str(found).replace(_ALL_IS_LEFT, _REST_IS_LEFT))
        plan, said = culprit
        blame(found, [plan], said, str(error).strip())
    return found


def _with_callers(found: BaseException, program: Program, error: Exception) -> BaseException:
    """The error of a run, with what has called Python on the host if that has raised: it is not run again."""
    callers = [n for n, each in enumerate(program.graph.operations) if registry.calls_python(each.plan)]
    if type(found) is not ExecutionError or not callers or "callback" not in str(error).lower():
        return found
    told = ExecutionError(str(found).replace(_ALL_IS_LEFT, _REST_IS_LEFT))
    # Which of several has raised is not known: XLA keeps the text of what it raised.
    text = "called by " + "\nor by ".join([program.origins.told(program.graph, index) for index in callers])
    blame(told, [program.graph.operations[index].plan for index in callers], text, str(error).strip())
    return told


# A stage failed behind another.
_GIVEN_IS_LOST = "What the program was to write over is lost; the other tensors of this step are still described."
_ALL_IS_LEFT = "The tensors of this step are still described, so it can be tried again."
_REST_IS_LEFT = "What needs this operation is lost; the other tensors of this step are still described."


def failure(
    error: Exception, where: str, origin: str, program: Program | None = None, numbers: Sequence[float | int] = ()
) -> ExecutionError:
    """What a user sees of an error of the device, in a `program` if it is known."""
    text = str(error)
    kind = OutOfMemory if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower() else ExecutionError
    compiled = program if program is not None and program.compiled_for(numbers) else None
    largest = memory_admission.explain(compiled, numbers) if kind is OutOfMemory else ""
    advice = f"{memory_admission.ADVICE}\n" if kind is OutOfMemory else ""
    return kind(f"The device failed in {where}: {text.strip()}\n{advice}{_ALL_IS_LEFT}\n{largest}{origin}")


def _converted(program: Program, buffers: Sequence[jax.Array]) -> list[jax.Array]:
    for buffer in buffers:
        if isinstance(buffer, Placeholder):
            buffer.refuse()
    wanted = [dtypes.to_jax(dtypes.on_device(spec.dtype)) for spec in program.graph.inputs]
    if all(b.dtype == dtype for b, dtype in zip(buffers, wanted, strict=True)):
        raise
    return list(map(client.converted, buffers, wanted))
