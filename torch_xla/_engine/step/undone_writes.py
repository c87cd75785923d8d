"""Undo what a failed step wrote, so that a training goes on: with a smaller batch, or with the next one.

On CUDA the call that needs too much memory raises, and what comes after it does not happen: neither the rest of the
forward pass nor the optimizer's step. Here the whole step is recorded when its memory turns out not to suffice, or when
one of its operations fails. Its weights would then depend on what cannot be computed, and so would those of each step
to come.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from threading import get_ident
from typing import Any

import torch

from .. import imported_objects
from ..ir.graph import Operation, decode
from ..ir.tape import ALONE, Tape, Value
from ..tensor.device import LOCK, Device, existing_devices
from ..tensor.storage import replaced

# What is recorded from the first operation on whose results take this part of the largest of the step is undone.
_LARGE = 0.01


def undo_without_room(devices: Iterable[Device]) -> None:
    """Let tensors hold what they held before the operations that take memory, if this thread wrote to them since then.

    A tensor that was made after these has the values that it was made with. Earlier operations stay pending, and so do
    results that overwrite no tensor, such as the loss. Reads run nothing else from now on, until a step ends.
    """
    with LOCK:
        for device in devices:
            operations = decode((*device.tape.code,))[1]
            _undo(device.tape, operations, _first_large(operations), _before)
            device.tape.rest = ALONE


def undo_behind(fails: Callable[[Operation], bool]) -> None:
    """Let each tensor hold what it held before the first operation that `fails`, if this thread wrote to it since then.

    A tensor that was made after that stays as it is.
    """
    with LOCK:
        for device in existing_devices():
            operations = decode((*device.tape.code,))[1]
            first = next((index for index, each in enumerate(operations) if fails(each)), None)
            if first is not None:
                _undo(device.tape, operations, first, _older)


def _undo(
    tape: Tape, operations: Sequence[Operation], first: int, choose: Callable[[Tape, Container[int], Value], Value]
) -> None:
    """Let each storage hold what `choose` returns without the results of this thread from operation `first` on."""
    here, undone = get_ident(), set[int]()
    for operation in operations[first:]:
        if tape.recorder(operation.position) == here:
            undone.update(range(operation.first_output, operation.first_output + len(operation.plan.outputs)))
    while True:
        storages, values = _pending_on(tape)
        if replaced(
            storages, values, [choose(tape, undone, value) for value in values]
        ):  # else a finalizer wrote to one meanwhile
            return


def _before(tape: Tape, undone: Container[int], value: Value) -> Value:
    """Return what a storage held that holds `value`, without the values at the slots that are `undone`."""
    while value.slot in undone and (earlier := tape.replaced_by(value)) is not None:
        value = earlier
    return value


def _older(tape: Tape, undone: Container[int], value: Value) -> Value:
    """Return what a storage held before all that is `undone`, or `value` if it was made after that."""
    before = _before(tape, undone, value)
    return value if before.slot in undone else before


def _first_large(operations: Sequence[Operation]) -> int:
    """Return the number of the first operation with a large result."""
    sizes = [max([spec.numel * spec.dtype.itemsize for spec in each.plan.outputs], default=0) for each in operations]
    least = _LARGE * max(sizes, default=0)
    return next((index for index, size in enumerate(sizes) if size >= least), 0)


def _pending_on(tape: Tape) -> tuple[list[Any], list[Value]]:
    """Return the storages that are alive and hold a value of `tape` that was not computed, and these values."""
    storages, values = list[Any](), list[Value]()
    for thing in imported_objects.alive():
        if issubclass(type(thing), torch.UntypedStorage):  # not `isinstance`: a proxy would begin to work for us
            value = getattr(thing, "value", None)
            if isinstance(value, Value) and value.buffer is None and value.tape is tape:
                storages.append(thing)
                values.append(value)
    return storages, values
