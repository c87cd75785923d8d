"""Sharding annotations on storages: they hold however the storage is written.

The result of an in-place operation is divided as the value that it replaces. But a parameter can also be filled again,
or become the copy of another tensor: such a value has no mark, and is divided as marked at the end of the step.
"""

import gc
from typing import Any, NamedTuple

import torch

from ..caching.bounded import put_last
from ..caching.interning import table_of_plans
from ..compat.names.torch import address_of
from ..ir.call_plan import Operand, Plan, interned
from ..ir.sharding import Sharding
from ..ir.tape import Value
from ..ir.value_spec import Spec
from ..lowering.machinery.jax_sharding import CONSTRAINT, carried, of_array, to_jax
from ..runtime import buffers
from .device import LOCK, Device, Mark
from .storage import record_plan, shows_all, value_of


def constrained(value: Value, sharding: Sharding | None) -> Value:
    """Return `value` with a sharding constraint."""
    with LOCK:
        spec = value.spec
        plan = _plans.get((spec, sharding))
        if plan is None:
            found = interned(Plan(CONSTRAINT, ((Operand(0), sharding), {}), (spec,), (), (spec,)))
            plan = _plans.setdefault((spec, sharding), found)
        (made,) = record_plan(plan, (value,), value.device)
    return made


# Those that divide a value of such a spec so.
_plans: dict[tuple[Spec, Sharding | None], Plan] = {}
table_of_plans(_plans)


def moved(value: Value, sharding: Sharding | None) -> Value:
    """Return the same as a computed `value`, divided so; the value itself if it is: one buffer belongs to one value."""
    wanted = to_jax(sharding, value.device.target)
    buffer = buffers.place(value.buffer, wanted, carried(value.spec.size, wanted))
    if buffer is value.buffer:
        return value
    made = Value(value.spec, value.device, None, -1)
    made.buffer = buffer
    if is_from_host(value):
        made.contents = value.contents
    return made


def is_from_host(value: Value) -> bool:
    """Return whether a computed value came from the host, and no program has made it."""
    return hasattr(value, "contents")


def remember(tensor: torch.Tensor, sharding: Sharding | None) -> None:
    """Keep the storage that `tensor` shows all of divided so, as its value is now."""
    value, storage = value_of(tensor), tensor.untyped_storage()
    if not shows_all(tensor, value.spec):
        return
    marks = value.device.marks
    mark = marks[address_of(storage)] = Mark(storage, sharding, marks)
    _settle(mark, value)


def forget(tensor: torch.Tensor) -> None:
    """Let the storage of `tensor` be divided as XLA sees fit from now on."""
    value_of(tensor).device.marks.pop(address_of(tensor.untyped_storage()), None)


def mark_of(tensor: torch.Tensor) -> Mark | None:
    """Return the annotation of the storage of `tensor`, if the tensor shows all of it."""
    value = value_of(tensor)
    found: Mark | None = value.device.marks.get(address_of(tensor.untyped_storage()))
    return found if found is not None and shows_all(tensor, value.spec) else None


def keep_now(tensor: torch.Tensor) -> None:
    """Divide the value of the storage of `tensor` as marked, before the end of the step does.

    In a program of several processes a computed value stays as it is: they move it together, at the end of the step.
    """
    with LOCK:
        mark, storage = mark_of(tensor), tensor.untyped_storage()
        value: Any = getattr(storage, "value", None)
        if mark is None or value is None:
            return
        device = value.device
        if value.buffer is None and (value.tape is None or value.tape is device.tape):
            if value.tape is None or mark.settled != (value.tape.started, value.slot):
                storage.value = value = constrained(value, mark.sharding)  # type: ignore[attr-defined]
                _settle(mark, value)
        elif value.buffer is not None and not _is_of_several(device):
            if of_array(value.buffer, device.target) != mark.sharding:
                _move([_Astray(mark, storage)])


def _is_of_several(device: Device) -> bool:
    """Return whether the values of `device` are divided among several processes."""
    return device.spread is not None and len(device.spread.processes) > 1


class _Written(NamedTuple):
    """A marked storage whose value is on the tape, and not divided as marked there."""

    slot: int
    mark: Mark
    storage: Any


class _Astray(NamedTuple):
    """A marked storage whose value is computed and divided in another way."""

    mark: Mark
    storage: Any


def keep(device: Device) -> None:
    """Divide as marked the values of marked storages: values on the tape of `device`, and computed ones."""
    if _is_of_several(device):
        _keep_alike(device)
        return
    written, astray = _found(device)
    _move(astray)
    for _, mark, storage in written:
        storage.value = value = constrained(storage.value, mark.sharding)
        _settle(mark, value)


# Slots divided at the end of a tape of several processes, with their shardings, by code; the latest used last.
_divided: dict[tuple[object, ...], tuple[tuple[int, Sharding | None], ...]] = {}
_MOST = 256


def _keep_alike(device: Device) -> None:
    """Call `keep` with the same values in all processes, whichever of them have collected a storage.

    If all that is written was divided at the end of an equal tape, that is divided: so it is whatever of it is garbage.
    If not, garbage is collected first; and before what is computed is moved.
    """
    values, code, written, astray = _found_now(device)
    usual = _divided.get(code, ())
    if astray or not {(slot, mark.sharding) for slot, mark, _ in written}.issubset(usual):
        del written, astray  # which hold them
        gc.collect()
        values, code, written, astray = _found_now(device)
        usual = (*dict.fromkeys([*_divided.get(code, ()), *((slot, mark.sharding) for slot, mark, _ in written)]),)
    put_last(_divided, code, usual, _MOST)
    _move(astray)
    made = {(slot, sharding): constrained(values[slot], sharding) for slot, sharding in usual}
    for slot, mark, storage in written:
        storage.value = value = made[slot, mark.sharding]
        _settle(mark, value)


def _found_now(device: Device) -> tuple[list[Value], tuple[object, ...], list[_Written], list[_Astray]]:
    """Search one tape of `device`: a finalizer may have it evaluated at any time, and then slots are others."""
    while True:
        tape, (written, astray) = device.tape, _found(device)
        code = (*tape.code,)
        if tape is device.tape:
            return tape.values, code, written, astray


def _found(device: Device) -> tuple[list[_Written], list[_Astray]]:
    """Return the values that are not divided as marked, on the tape and computed."""
    written: list[_Written] = []
    astray: list[_Astray] = []
    for mark in list(device.marks.values()):
        storage: Any = mark.storage()
        value: Value | None = getattr(storage, "value", None)
        if value is None or value.device is not device:
            continue
        if value.buffer is not None:
            placed = value.buffer.sharding
            if placed is not mark.seen:
                if of_array(value.buffer, device.target) != mark.sharding:
                    astray.append(_Astray(mark, storage))
                else:
                    mark.seen = placed
        elif value.tape is device.tape and mark.settled != (value.tape.started, value.slot):
            written.append(_Written(value.slot, mark, storage))
    return written, astray


def _move(astray: list[_Astray]) -> None:
    for mark, storage in astray:
        storage.value = value = moved(storage.value, mark.sharding)
        mark.seen = value.buffer.sharding


def _settle(mark: Mark, value: Value) -> None:
    if value.tape is not None:
        mark.settled = value.tape.started, value.slot
