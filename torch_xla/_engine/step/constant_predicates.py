"""Evaluate truth values that follow from the program alone without cutting the step.

Branching on such a value would split the step, wait for all earlier operations, and prevent replays. But a truth value
that reads no memory, draws no random numbers and has no effect is the same each time the program has the same numbers.
It is computed once, in a program of its own; the tape does not change.

A loop that counts on the device and branches in each round would need a longer graph each time. So a truth value that
needs operations of an earlier one, and more than that one, is evaluated as usual, and the loop continues from there. A
tape has only a few such programs.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from .. import config, metrics
from ..caching import least_recently_used
from ..compile import program_cache, settings_in_force
from ..compile.program import Program
from ..ir.graph import Cut, cut, decode, needed_in_order
from ..ir.tape import Tape, Value
from ..metrics.events import Cause
from ..metrics.observers import observers
from ..runtime import buffers
from ..tensor.device import Device
from . import executor, waits_among_processes
from .failed_ops import prune
from .step import Step, lines_of
from .unlocked_compile import Attempt, NotCompiled, under_lock

# Maximum number of programs for truth values of one tape.
_MOST = 4

_read = metrics.counter("TruthsKnown")


@dataclass(slots=True)
class _Truth:
    """A part of a tape that gives one truth value."""

    part: Cut | None  # `None`: it depends on more than the program
    program: Program | None = None
    lines: tuple[Any, ...] = ()
    known: tuple[str, Value] | None = None  # for the latest numbers
    used: int = 0


_truths: dict[Hashable, _Truth] = {}


def is_candidate(tensor: torch.Tensor, value: Value) -> bool:
    """Return whether `tensor` may show a truth value that is yet to be computed."""
    return tensor.dtype is torch.bool and value.buffer is None and value.tape is not None and value.spec.numel == 1


def known(value: Value) -> bool | None:
    """Return the truth value, if it follows from the program alone."""
    found: list[Value] = []
    try:
        under_lock(partial(_find, value, found))
    except Exception as error:
        prune(error, (value.device,))
        raise
    if not found:
        return None
    waits_among_processes.until_ready((found[0].buffer,))
    return bool(np.asarray(buffers.get(found[0].buffer)).item())


def _find(value: Value, found: list[Value], attempt: Attempt) -> None:
    device: Device = value.device
    tape = value.tape
    if tape is not device.tape or observers.describe_run is not None:
        return
    truth = _truth_at(device, tape, value.slot)
    if truth.part is None or truth.program is None or len(tape.numbers) <= max(truth.part.numbers, default=-1):
        return
    if truth.program not in tape.truths and (len(tape.truths) == _MOST or _grows(tape, truth.part.positions)):
        return
    numbers = (*[tape.numbers[index] for index in truth.part.numbers],)
    said = repr(numbers)  # -0.0 is not 0.0
    if truth.known is None or truth.known[0] != said:
        if not attempt.compiles and not truth.program.compiled_for(numbers):
            raise NotCompiled(truth.program, numbers, (), Cause.READ, lambda: truth.lines)
        made = Value(value.spec, device, None, -1)
        first = truth.program is attempt.compiled
        executor.run(Step(truth.program, (), (made,), numbers, None, Cause.READ, lambda: truth.lines, is_first=first))
        truth.known = said, made
    tape.truths[truth.program] = frozenset(truth.part.positions)
    _read.value += 1
    found.append(truth.known[1])


def _grows(tape: Tape, positions: Sequence[int]) -> bool:
    """Return whether a truth value continues from an earlier one, which needed some of the same operations."""
    return any(len(asked) < len(positions) and not asked.isdisjoint(positions) for asked in tape.truths.values())


def _truth_at(device: Device, tape: Tape, slot: int) -> _Truth:
    code = (*tape.code,)
    key = code, slot, device.index, device.spread, settings_in_force.now()
    truth = _truths.get(key)
    if truth is None:
        truth = _truths[key] = _made(device, tape, code, slot)
        least_recently_used.trim(_truths, config.compilation_cache_size())
    truth.used = least_recently_used.now()
    return truth


def _made(device: Device, tape: Tape, code: Sequence[object], slot: int) -> _Truth:
    inputs, operations, producer = decode(code)
    part = cut(inputs, operations, needed_in_order(operations, producer, [slot]), [slot])
    if part.inputs or part.draws or any(operation.plan.effect is not None for operation in operations):
        return _Truth(None)
    program = program_cache.program_of(part.graph, (), device.target_of(part.graph))
    return _Truth(part, program, lines_of(part, tape.all_lines(code)))
