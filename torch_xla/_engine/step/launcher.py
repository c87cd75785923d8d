"""Start a program: values in, values out. Every program starts here.

A tape, an operation that runs at once, a replay, a pack and a cached graph all come here.
"""

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any

from ..atomic import run_through, stores
from ..compile.program import Program
from ..errors import ExecutionError
from ..ir.tape import Failed, Value, set_buffer
from ..metrics.counters import Counter
from ..metrics.events import Cause
from ..tensor import live_counters
from ..tensor.random_state import keys_of
from . import executor
from .executor import ALONE, Around
from .in_flight import SourceLines

# Tells what a program would give, in the place of its run (`planning/planned_step`): asked with its inputs, outputs,
# numbers, random keys, cause and lines.
Describe = Callable[
    [Program, Sequence[Value], Sequence[Value], Sequence[float | int], Any, Cause, SourceLines], Sequence[Any]
]
describe: Describe | None = None

# Divides inputs of a schedule that is about to run, on its tape, and tells whether it did (`diagnostics/layouts/`).
arrange: Callable[[Any, Any], bool] | None = None


def launch(
    program: Program,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    numbers: Sequence[float | int] = (),
    draws: list[int] | None = None,
    cause: Cause = Cause.SYNC,
    source_lines: SourceLines = lambda: (),
    around: Around = ALONE,
    counts: Sequence[tuple[Counter, int]] = (),
    is_first: bool = False,
) -> None:
    """Starts `program` on the buffers of `inputs`, and gives the buffers of its results to `outputs`.

    `draws` are the states of its random numbers; `counts` is added to counters; with `is_first` it was compiled for
    this run. The caller holds the lock. An interrupt finds the run as not begun, or all of it done, with what is to
    happen `around` it.
    """
    keys = keys_of(draws) if draws else None
    if describe is not None:
        given = describe(program, inputs, outputs, numbers, keys, cause, source_lines)
        run_through(chain(around.before, map(set_buffer, outputs, given), around.after))
        return
    buffers = [value.buffer for value in inputs]
    try:
        executor.run(program, buffers, numbers, keys, outputs, cause, source_lines, around, is_first)
    except BaseException as error:
        for value in inputs:
            if isinstance(value.tape, Failed):  # another run has lost it since it was recorded with
                raise ExecutionError(f"This step needs a value that is gone: {value.tape.why}") from error
        if program.donated:
            _lose(inputs, str(error) or type(error).__name__)
        raise
    live_counters.buffers.value += len(outputs)
    for counter, count in counts:
        counter.value += count


def _lose(inputs: Sequence[Value], why: str) -> None:
    """Has whoever needs what a program took, and failed before it gave anything, be told why it is gone."""
    lost = [value for value in inputs if value.buffer is not None and value.buffer.is_deleted()]
    run_through(chain(stores(lost, "tape", repeat(Failed(why))), stores(lost, "buffer", repeat(None))))
