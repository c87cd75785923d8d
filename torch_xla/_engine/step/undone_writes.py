"""Undo what a step wrote that was refused for lack of memory, so that a training goes on with a smaller batch.

On CUDA the call that needs too much raises, and what comes after it does not happen: neither the rest of the forward
pass nor the optimizer's step. Here the whole step is recorded when its memory turns out not to suffice. Its weights
would then depend on a batch that cannot be computed, and so would those of each step to come.
"""

import gc
from collections.abc import Container, Iterable, Sequence
from functools import partial
from threading import get_ident
from typing import Any

import torch

from ..ir.graph import Operation, decode
from ..ir.tape import ALONE, Tape, Value
from ..tensor.device import LOCK, existing_devices
from ..tensor.storage import replaced

# What is recorded from the first operation on whose results take this part of the largest of the step is undone.
_LARGE = 0.01


def undo_writes() -> None:
    """Let each tensor hold what it held before the operations that take memory, if this thread wrote to it since then.

    What was recorded before these is pending as before; so is what is no write, such as the loss.
    """
    with LOCK:
        for device in existing_devices():
            if device.tape.code:
                _undo(device.tape)


def _undo(tape: Tape) -> None:
    _, operations, producer = decode((*tape.code,))
    first = _first_large(operations)
    mine = get_ident()
    undone = {
        slot
        for slot, made_by in enumerate(producer)
        if made_by >= first and tape.recorder(operations[made_by].position) == mine
    }
    pending = [*_pending_on(tape)]
    before = [*map(partial(_before, tape, undone), [value for _, value in pending])]
    replaced([storage for storage, _ in pending], [value for _, value in pending], before)
    tape.rest = ALONE


def _before(tape: Tape, undone: Container[int], value: Value) -> Value:
    """Return what a storage held that holds `value`, without the values at the slots that are `undone`."""
    while value.slot in undone and (earlier := tape.replaced_by(value)) is not None:
        value = earlier
    return value


def _first_large(operations: Sequence[Operation]) -> int:
    """Return the number of the first operation with a large result."""
    sizes = [max([spec.numel * spec.dtype.itemsize for spec in each.plan.outputs], default=0) for each in operations]
    least = _LARGE * max(sizes, default=0)
    return next((index for index, size in enumerate(sizes) if size >= least), 0)


def _pending_on(tape: Tape) -> Iterable[tuple[Any, Value]]:
    """Yield each storage that is alive and holds a value of `tape` that was not computed, with the value."""
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.UntypedStorage):  # not `isinstance`: a proxy would begin to work for us
            value = getattr(thing, "value", None)
            if isinstance(value, Value) and value.buffer is None and value.tape is tape:
                yield thing, value
