"""Runs programs, names the step and the user's lines when one fails, and waits where somebody asks for it."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .. import dtypes, metrics
from ..client.platform import is_host, refuse_fork
from ..compile.program import Program
from ..errors import ExecutionError, OutOfMemory

_step = 0
# The last programs started, each with its smallest output: waiting waits for these, and they hold little memory.
_in_flight: "deque[tuple[int, Any, Callable[[], str]]]" = deque(maxlen=32)


def run(
    program: Program,
    buffers: list[jax.Array],
    numbers: Sequence[float | int],
    keys: np.ndarray | None,
    describe: Callable[[], str],
) -> Sequence[jax.Array]:
    """Starts `program`. `describe` gives the user's lines it was recorded from, for errors."""
    global _step
    refuse_fork()
    if program.compiled_for(numbers):
        metrics.count("CachedCompile")
    if is_host(program.device):
        # Two steps at once would need the memory for intermediate values twice, on cores they only share.
        _wait_for_the_last()
    try:
        with metrics.timed("ExecuteTime"):
            try:
                outputs = program.run(list(buffers), numbers, keys)
            except TypeError:
                # Under XLA_USE_BF16, set after some values were already on the device, those have another dtype.
                outputs = program.run(_converted(program, buffers), numbers, keys)
    except jax.errors.JaxRuntimeError as error:
        raise failure(error, f"step {_step}", describe()) from error
    _step += 1
    if outputs:
        _in_flight.append((_step - 1, outputs[program.smallest_output], describe))
    return outputs


def _wait_for_the_last() -> None:
    if _in_flight:
        output = _in_flight[-1][1]
        if not output.is_deleted():
            jax.block_until_ready(output)


def wait() -> None:
    """Waits until every program started so far has ended; raises what one of them raised."""
    while True:
        try:
            step, output, describe = _in_flight.popleft()
        except IndexError:
            return  # all have ended, or another thread waits for the last
        if output.is_deleted():
            continue
        try:
            output.block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            raise failure(error, f"step {step}", describe()) from error


def failure(error: Exception, where: str, lines: str) -> ExecutionError:
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
        f"The tensors of this step are still described, so it can be tried again.\n{lines}"
    )


def _converted(program: Program, buffers: Sequence[jax.Array]) -> list[jax.Array]:
    wanted = [dtypes.to_jax(dtypes.on_device(spec.dtype)) for spec in program.graph.inputs]
    if all(b.dtype == dtype for b, dtype in zip(buffers, wanted, strict=True)):
        raise
    with jax.enable_x64(True):
        return [b if b.dtype == dtype else b.astype(dtype) for b, dtype in zip(buffers, wanted, strict=True)]
