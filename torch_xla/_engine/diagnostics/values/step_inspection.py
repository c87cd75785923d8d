"""Show the inputs and outputs of each program to inspectors of steps.

`step/sync.py` asks one inspector before each run and calls what it returned when the step is over. Here several share
that place. Inputs that a program would be donated are copied before.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ...atomic import uncollected
from ...compile.program import Program
from ...ir.graph import Graph
from ...ir.tape import Tape, Value
from ...lowering.machinery.jax_sharding import logical
from ...metrics.observers import observers
from ...metrics.user_lines import Line
from ...runtime.device_assignment import Target
from ...step.step import Schedule, lines_of
from ...step.sync import sync_device
from ...tensor.device import current_index, device_at, existing_devices
from ...tensor.random_state import keys_of


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program. `outputs` are there once it has been started."""

    program: Program
    inputs: list[jax.Array]  # none of them is given away
    input_lines: list[Line | None]  # where the inputs were made, as far as that is known
    numbers: list[float | int]
    keys: np.ndarray | None
    lines: tuple[Line | None, ...]  # of the operations
    values: list[Value]  # of the outputs

    @property
    def graph(self) -> Graph:
        """The graph that is computed."""
        return self.program.graph

    @property
    def outputs(self) -> list[Any]:
        """The buffers of the results."""
        return [_shown(value) for value in self.values]


Inspector = Callable[[Run], None]

_inspectors: list[Inspector] = []


@contextmanager
def inspecting(inspector: Inspector) -> Iterator[None]:
    """Show `inspector` each run of a program that the block recorded, once it was started.

    Operations recorded before the block run first, and operations still recorded at its end run there.
    """
    sync_all()
    start(inspector)
    try:
        yield
        sync_all()
    finally:
        stop(inspector)


def start(inspector: Inspector) -> None:
    """Show `inspector` each run of a program from now on."""
    _inspectors.append(inspector)
    observers.register("inspect_step", _inspect)


def stop(inspector: Inspector) -> None:
    """End `start`."""
    _inspectors.remove(inspector)
    if not _inspectors:
        observers.register("inspect_step", None)


def sync_all() -> None:
    """Start what is recorded on any device."""
    for device in existing_devices():
        sync_device(device)


def _inspect(schedule: Schedule, tape: Tape) -> Callable[[], None]:
    assert schedule.program is not None
    part = schedule.cut
    inputs = [tape.values[slot] for slot in part.inputs]
    donated = frozenset(schedule.program.donated)
    run = Run(
        schedule.program,
        [_kept(_shown(value), index in donated) for index, value in enumerate(inputs)],
        [getattr(value, "line", None) for value in inputs],
        [tape.numbers[index] for index in part.numbers],
        keys_of([tape.draws[index] for index in part.draws]) if part.draws else None,
        lines_of(part, schedule.lines),
        [tape.values[slot] for slot in part.outputs],
    )

    def show() -> None:
        for inspector in tuple(_inspectors):
            inspector(run)

    return show


def _shown(value: Value) -> jax.Array:
    return logical(value.buffer, value.spec.size, value.device.target)


@uncollected
def _kept(buffer: jax.Array, is_given_away: bool) -> jax.Array:
    if not is_given_away:
        return buffer
    with jax.enable_x64(True):
        return jax.numpy.array(buffer, copy=True)


def any_of(test: Callable[[jax.Array], jax.Array], arrays: Sequence[jax.Array]) -> list[bool]:
    """Return for each of `arrays`, whether `test` holds for one of its elements; what cannot be tested answers no."""
    with jax.enable_x64(True):
        found = [test(array).any() if is_inexact(array) else False for array in arrays]
        return [bool(answer) for answer in jax.device_get(found)]


def is_inexact(array: jax.Array) -> bool:
    """Return whether the elements are floating-point or complex numbers: whether one can be NaN."""
    return bool(jax.numpy.issubdtype(array.dtype, jax.numpy.inexact))


def target_in_use() -> Target:
    """Return the hardware behind this thread's device."""
    return device_at(current_index()).target
