"""How memory is to be divided, where somebody has said so: it stays so however it is written.

What an operation in place gives lies as what it replaces. But a parameter can also be filled anew, or become the copy
of another tensor: what is then in its storage knows nothing of the mark, and is divided so at the end of the step.
"""

import weakref
from typing import Any

import torch

from ..client import buffers
from ..graph.plan import Operand, Plan, interned
from ..graph.sharding import Sharding
from ..graph.tape import Value
from ..lowering.sharding import CONSTRAINT, of_array, to_jax
from .device import LOCK, Device
from .storage import operand_slot, shows_all, value_of


class Mark:
    """What was said of one storage."""

    __slots__ = ("seen", "settled", "sharding", "storage")

    def __init__(self, storage: Any, sharding: Sharding | None, marks: dict[int, "Mark"]) -> None:
        place = storage._cdata
        self.sharding = sharding
        self.storage = weakref.ref(storage, lambda _: marks.pop(place, None))
        self.settled: tuple[int, int] | None = None  # the tape, by when it began, and the slot that is divided so
        self.seen: Any = None  # JAX's sharding of a buffer that was found to be divided so


def constrained(value: Value, sharding: Sharding | None) -> Value:
    """The same as `value`, divided so wherever it stands in a program."""
    with LOCK:
        device: Device = value.device
        plan = interned(Plan(CONSTRAINT, ((Operand(0), sharding), {}), (value.spec,), (), (value.spec,)))
        tape = device.tape
        (made,) = tape.append(plan, (operand_slot(tape, value),), device)
    return made


def moved(value: Value, sharding: Sharding | None) -> Value:
    """The same as a computed `value`, divided so."""
    made = Value(value.spec, value.device, None, -1)
    made.buffer = buffers.place(value.buffer, to_jax(sharding, value.device.target))
    return made


def remember(tensor: torch.Tensor, sharding: Sharding | None) -> None:
    """Keeps the storage that `tensor` shows all of divided so, as its value is now."""
    value, storage = value_of(tensor), tensor.untyped_storage()
    if not shows_all(tensor, value.spec):
        return
    marks = value.device.marks
    mark = marks[storage._cdata] = Mark(storage, sharding, marks)
    _settle(mark, value)


def forget(tensor: torch.Tensor) -> None:
    """Lets the storage of `tensor` be divided as XLA sees fit from now on."""
    value_of(tensor).device.marks.pop(tensor.untyped_storage()._cdata, None)


def mark_of(tensor: torch.Tensor) -> Mark | None:
    """What was said of the storage of `tensor`, if it shows all of it."""
    value = value_of(tensor)
    found: Mark | None = value.device.marks.get(tensor.untyped_storage()._cdata)
    return found if found is not None and shows_all(tensor, value.spec) else None


def keep(device: Device) -> None:
    """Divides as marked what was written to marked storages on the tape of `device`, or lies otherwise."""
    for mark in list(device.marks.values()):
        storage: Any = mark.storage()
        value: Value | None = getattr(storage, "value", None)
        if value is None or value.device is not device:
            continue
        if value.buffer is not None:
            found = value.buffer.sharding
            if found is not mark.seen:
                if of_array(value.buffer, device.target) != mark.sharding:
                    storage.value = value = moved(value, mark.sharding)
                mark.seen = value.buffer.sharding
        elif value.tape is device.tape and mark.settled != (value.tape.started, value.slot):
            storage.value = value = constrained(value, mark.sharding)
            _settle(mark, value)


def _settle(mark: Mark, value: Value) -> None:
    if value.tape is not None:
        mark.settled = value.tape.started, value.slot
