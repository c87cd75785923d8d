"""Runs programs, names the step and the user's lines when one fails, and waits where somebody asks for it."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .. import dtypes, metrics
from ..client import host_heap
from ..client.platform import is_host, refuse_fork
from ..compile.program import Program
from ..errors import ExecutionError, OutOfMemory
from ..metrics import events, lines
from ..metrics.events import Cause
from ..metrics.lines import Line
from .offending import tell_hlo

# The user's line of each operation of a program: looked up only where somebody wants to know.
SourceLines = Callable[[], tuple[Line | None, ...]]

_executed = metrics.counter("ExecuteComputation")
_cached = metrics.counter("CachedCompile")
_waiting = metrics.metric("DeviceLockWait")
_executing = metrics.metric("ExecuteTime")

_step = 0
# The last programs started, each with small outputs that are there when all of it has ended: waiting waits for these,
# and they hold little memory.
_in_flight: "deque[tuple[int, list[Any], Program, Sequence[float | int], SourceLines]]" = deque(maxlen=32)

# On the host a program waits for those before it until what they and it allocate is no more than this. Several at once
# need memory for each, on cores that they only share; but the device stands still while a program that waited is woken
# and started, and of small programs that is the larger part.
_AT_ONCE = 64 << 20
# Programs whose values take less are not counted.
_COUNTED = 1 << 20
# The bytes that each program which may still run allocated, and outputs that tell when it has ended.
_running: "deque[tuple[int, list[Any]]]" = deque()
# After waiting for so many seconds, this part of them is a moment.
_LONG, _MOMENT = 0.02, 1 / 400

# A compilation of so many seconds leaves memory that is worth returning.
_LEAVES_MEMORY = 1.0


def run(
    program: Program,
    buffers: list[jax.Array],
    numbers: Sequence[float | int],
    keys: np.ndarray | None,
    cause: Cause,
    source_lines: SourceLines,
) -> Sequence[jax.Array]:
    """Starts `program`. `cause` and `source_lines` are for those who listen, and for errors."""
    global _step
    refuse_fork()
    runs_again = program.compiled_for(numbers)
    if runs_again:
        _cached.value += 1
    else:
        _compile(program, buffers, numbers, cause, source_lines())
    is_counted = program.bytes >= _COUNTED and is_host(program.device)
    begins = time.perf_counter_ns()
    if is_counted:
        _make_room(program.allocates)
        if runs_again:
            host_heap.keep_memory()
    start = time.perf_counter_ns()
    _waiting.add(start - begins)
    _executed.value += 1
    try:
        try:
            outputs = program.run(list(buffers), numbers, keys)
        except (TypeError, jax.errors.JaxRuntimeError):
            # Under XLA_USE_BF16, set after some values were already on the device, those have another dtype.
            outputs = program.run(_converted(program, buffers), numbers, keys)
        finally:
            _executing.add(time.perf_counter_ns() - start)
    except jax.errors.JaxRuntimeError as error:
        raise _failure_of(program, numbers, error, f"step {_step}", source_lines()) from error
    _step += 1
    if outputs:
        ends = [outputs[i] for i in program.ends]
        _in_flight.append((_step - 1, ends, program, numbers, source_lines))
        if is_counted:
            _running.append((program.allocates, ends))
    if events.closely:
        seconds = (time.perf_counter_ns() - start) * 1e-9
        frames = lines.user_lines(events.depth)
        events.emit(events.Execution(program, tuple(numbers), cause, frames, start * 1e-9, seconds))
    return outputs


def prepare(program: Program, numbers: Sequence[float | int], cause: Cause, source_lines: SourceLines) -> None:
    """Compiles what `run` with these numbers would compile."""
    if not program.compiled_for(numbers):
        _compile(program, (), numbers, cause, source_lines())


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
        frames=lines.user_lines(events.ALL_FRAMES),
        start=start,
        seconds=0.0,
        sizes=None,
    )
    events.ask(compilation)
    try:
        sizes = program.compile_for(numbers)
    except jax.errors.JaxRuntimeError as error:
        raise _failure_of(program, numbers, error, f"the compilation of step {_step}", source_lines) from error
    seconds = time.perf_counter() - start
    if seconds > _LEAVES_MEMORY:
        host_heap.release_memory()
    events.emit(compilation._replace(seconds=seconds, sizes=sizes, shared=program.shared))


def _make_room(needed: int) -> None:
    """Waits until what the counted programs allocated is no more than `_AT_ONCE`, together with `needed` bytes."""
    while _running and needed + sum([size for size, _ in _running]) > _AT_ONCE:
        try:
            _, ends = _running.popleft()
        except IndexError:
            return  # another thread waits for the last
        ends = _still_there(ends)
        if all([end.is_ready() for end in ends]):
            continue
        start = time.perf_counter()
        jax.block_until_ready(ends)
        waited = time.perf_counter() - start
        if waited > _LONG:
            # XLA tells that a program has ended and frees its memory then, in a thread that this one was just woken in
            # the place of. A moment later its memory is there for the next program, which is about to ask for as much.
            time.sleep(waited * _MOMENT)
        _tell_wait(start, False)


def _still_there(ends: list[Any]) -> list[Any]:
    # One that is not was given to a later program, which ends later.
    return [end for end in ends if not end.is_deleted()]


def _tell_wait(start: float, asked: bool) -> None:
    if events.closely or (asked and events.watched):
        events.emit(events.Wait(lines.user_lines(events.depth), start, time.perf_counter() - start, asked))


def wait() -> None:
    """Waits until every program started so far has ended; raises what one of them raised."""
    start = time.perf_counter()
    _wait()
    _tell_wait(start, True)


def _wait() -> None:
    while True:
        try:
            step, ends, program, numbers, source_lines = _in_flight.popleft()
        except IndexError:
            return  # all have ended, or another thread waits for the last
        try:
            jax.block_until_ready(_still_there(ends))
        except jax.errors.JaxRuntimeError as error:
            raise _failure_of(program, numbers, error, f"step {step}", source_lines()) from error


def last_ends() -> list[Any] | None:
    """Small outputs of the program started last: they are there when it has ended. `None` before the first."""
    return _in_flight[-1][1] if _in_flight else None


def _failure_of(
    program: Program,
    numbers: Sequence[float | int],
    error: Exception,
    where: str,
    source_lines: Sequence[Line | None],
) -> ExecutionError:
    return failure(error, where, lines.summary(source_lines) + tell_hlo(program, numbers))


def failure(error: Exception, where: str, origin: str) -> ExecutionError:
    """What a user sees of an error of the device."""
    text = str(error)
    kind = OutOfMemory if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower() else ExecutionError
    advice = (
        "Use a smaller batch, checkpoint activations (torch.utils.checkpoint) or drop references to tensors you no "
        "longer need. "
        if kind is OutOfMemory
        else ""
    )
    return kind(
        f"The device failed in {where}: {text.strip()}\n{advice}"
        f"The tensors of this step are still described, so it can be tried again.\n{origin}"
    )


def _converted(program: Program, buffers: Sequence[jax.Array]) -> list[jax.Array]:
    wanted = [dtypes.to_jax(dtypes.on_device(spec.dtype)) for spec in program.graph.inputs]
    if all(b.dtype == dtype for b, dtype in zip(buffers, wanted, strict=True)):
        raise
    with jax.enable_x64(True):
        return [b if b.dtype == dtype else b.astype(dtype) for b, dtype in zip(buffers, wanted, strict=True)]
