"""Make the errors of programs that fail: the message with the operation, the user's lines and the HLO."""

from collections.abc import Sequence
from pathlib import Path

import jax

from .. import config
from ..compat.names import jax as private
from ..compile import program_text
from ..compile.program import Program, blame
from ..errors import ExecutionError, OutOfMemory
from ..lowering.machinery import registry
from ..metrics import events, user_lines
from ..metrics.user_lines import Line
from ..runtime import host_malloc
from ..runtime.buffers import deleted_error
from .compile_progress import report_progress
from .memory_admission import ADVICE, NO_MEMORY
from .memory_admission import explain as explain_memory
from .waits_among_processes import failure_of


def save_hlo(program: Program, numbers: Sequence[float | int]) -> str:
    """Save the HLO where `XLA_SAVE_HLO_FILE` says, and return a note for the error.

    With `XLA_DUMP_HLO_GRAPH` the note is the whole HLO.
    """
    file = config.save_hlo_file()
    if not file and not config.dump_hlo_graph():
        return ""
    hlo = program_text.hlo(program.lowered(numbers))
    note = ""
    if file:
        Path(file).write_text(hlo)
        note += f"\nIts HLO is in {file}."
    if config.dump_hlo_graph():
        note += f"\nIts HLO:\n{hlo}"
    return note


def user_error(
    program: Program,
    numbers: Sequence[float | int],
    error: Exception,
    where: str,
    source_lines: Sequence[Line | None],
) -> RuntimeError | KeyboardInterrupt:
    """Return the user's error for one that JAX raised for a program."""
    if private.is_interrupt(error):
        return KeyboardInterrupt()
    return failure_of(error) or failure(
        error, where, user_lines.summary(source_lines) + save_hlo(program, numbers), program, numbers
    )


def run_error(
    program: Program,
    numbers: Sequence[float | int],
    error: Exception,
    step: int,
    source_lines: Sequence[Line | None],
    buffers: Sequence[jax.Array],
) -> BaseException:
    """Return the user's error for one of a run, which may have taken some of the `buffers`."""
    for index, buffer in enumerate(buffers):
        if index not in program.donated and buffer.is_deleted():
            return deleted_error(buffer)
    found = user_error(program, numbers, error, f"step {step}", source_lines)
    if isinstance(found, ExecutionError) and any(buffers[index].is_deleted() for index in program.donated):
        said = str(found).replace(_ALL_IS_LEFT, _GIVEN_IS_LOST).replace(_IS_UNDONE, _GIVEN_IS_LOST)
        found = type(found)(said)
    return _with_callers(found, program, error)


def compile_error(
    program: Program, numbers: Sequence[float | int], error: Exception, step: int, source_lines: Sequence[Line | None]
) -> RuntimeError | KeyboardInterrupt:
    """Return the user's error for one of XLA's compiler, with the operation that it cannot compile, if it is one."""
    found = user_error(program, numbers, error, f"the compilation of step {step}", source_lines)
    if type(found) is not ExecutionError:
        return found
    with (
        report_progress(len(program.graph.operations), user_lines.user_lines(events.ALL_FRAMES)),
        host_malloc.compiling(),
    ):
        culprit = program.culprit(numbers)
    if culprit is not None:
        found = ExecutionError(str(found).replace(_ALL_IS_LEFT, _REST_IS_LEFT))
        plan, said = culprit
        blame(found, [plan], said, str(error).strip())
    return found


def _with_callers(found: BaseException, program: Program, error: Exception) -> BaseException:
    """Return the error of a run, with what has called Python on the host if that has raised: it is not run again."""
    callers = [n for n, each in enumerate(program.graph.operations) if registry.calls_python(each.plan)]
    if type(found) is not ExecutionError or not callers or "callback" not in str(error).lower():
        return found
    blamed = ExecutionError(str(found).replace(_ALL_IS_LEFT, _REST_IS_LEFT))
    # XLA keeps only the text of the exception, so it is not known which of several callbacks raised it.
    text = "called by " + "\nor by ".join([program.origins.described(program.graph, index) for index in callers])
    blame(blamed, [program.graph.operations[index].plan for index in callers], text, str(error).strip())
    return blamed


# A stage failed behind another.
_GIVEN_IS_LOST = "What the program was to write over is lost; the other tensors of this step are still described."
_IS_UNDONE = "What the step wrote to tensors is undone, so it can be tried again."
_ALL_IS_LEFT = "The tensors of this step are still described, so it can be tried again."
_REST_IS_LEFT = (
    "What the step wrote after this operation is undone, and what needs its result is lost; the other tensors of this "
    "step are still described."
)


def failure(
    error: Exception, where: str, origin: str, program: Program | None = None, numbers: Sequence[float | int] = ()
) -> ExecutionError:
    """Return the user's error for one of the device, in a `program` if that is known."""
    text = str(error)
    kind = OutOfMemory if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower() else ExecutionError
    compiled = program if program is not None and program.compiled_for(numbers) else None
    said = f"The device failed in {where}: {text.strip()}"
    if kind is OutOfMemory:
        return kind(f"{NO_MEMORY}{said}\n{ADVICE}\n{_IS_UNDONE}\n{explain_memory(compiled, numbers)}{origin}")
    return kind(f"{said}\n{_ALL_IS_LEFT}\n{origin}")
