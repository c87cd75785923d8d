"""Eager mode: run each operation when it is called, by a program of its own that is compiled once.

Reading an operand through a view, and writing through a view, are part of the operation's program. Constants
(operations without operands) wait for the first operation that reads them. So do random numbers that fill memory for
the first time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

from ..atomic import stores
from ..dispatch import recording_kernel
from ..dispatch.call_planning import Call, Entry
from ..dispatch.op_schema import Operator, read_by, written_by
from ..ir.call_plan import Plan
from ..ir.tape import Tape, Value
from ..step import eager_cache
from ..step.liveness import StillHeld
from ..step.step import Schedule
from ..step.sync import sync_device
from ..tensor.device import LOCK, Device, existing_devices
from ..tensor.storage import refuse_if_overtaken, value_of

# From this size in bytes, reusing a buffer saves more than checking that no other value holds it.
_WORTH_TAKING = 1 << 16

# An operation is being run; others came in the middle of it, from finalizers. Both under the lock.
_is_running = _is_joined = False


def is_on() -> bool:
    """Return whether operations run when they are called; False inside a region."""
    return recording_kernel.runs_at_once()


def switch(on: bool) -> None:
    """Turn eager mode on or off. Turning it on starts the operations recorded so far."""
    was_on = is_on()
    recording_kernel.run_at_once(_run if on else None)
    if on and not was_on:
        # Last: it may be interrupted, and then the next operation starts what is left.
        _start_what_is_recorded()


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Switch eager mode on, or off, within a `with` block."""
    try:
        with recording_kernel.as_now():
            switch(on)
            yield
    finally:
        if is_on() and not on:
            _start_what_is_recorded()


def _run(entry: Entry, operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any], call: Call) -> object:
    _, operands, numbers = call
    global _is_running, _is_joined
    plan: Plan = entry.plan  # type: ignore[assignment]
    if plan.draws and _is_nothing_yet(operands):
        return recording_kernel.record_call(entry, operator, args, kwargs, call)
    device = recording_kernel.device_of(operands, kwargs)
    left: _Recorded | None = None
    with LOCK:
        if _is_running:  # it runs when the one that it came in the middle of is done
            _is_joined = True
            return recording_kernel.record_call(entry, operator, args, kwargs, call)
        try:
            _is_running, _is_joined = True, False
            if entry.writes:
                read = read_by(operator, args, kwargs, operands)
                refuse_if_overtaken(written_by(operator, args, kwargs), read)
                del read
            alone = eager_cache.look_up(entry, operands, device)
            if alone is None or alone.shortcut is None:
                made, left = _record(entry, operator, args, kwargs, call, device, alone)
            elif entry.writes:
                made, left = _write(entry, operator, args, kwargs, call, device, alone)
            else:
                outputs, values = alone.shortcut.results_on(device)
                eager_cache.run(alone, outputs, numbers, _draws(plan, args, kwargs, device))
                made = recording_kernel.give(entry, operator, args, kwargs, values, operands)
        finally:
            _is_running = False
        is_joined = _is_joined
    if left is not None:
        left.run(learns=not is_joined)
    if is_joined:
        _start_what_is_recorded()
    return made


def _start_what_is_recorded() -> None:
    for device in existing_devices():
        sync_device(device)


def _draws(plan: Plan, args: tuple[object, ...], kwargs: dict[str, Any], device: Device) -> list[int]:
    return recording_kernel.draw(plan, device, recording_kernel.generator_of(args, kwargs)) if plan.draws else []


def _write(
    entry: Entry,
    operator: Operator,
    args: tuple[object, ...],
    kwargs: dict[str, Any],
    call: Call,
    device: Device,
    alone: eager_cache.EagerCall,
) -> tuple[object, "_Recorded | None"]:
    """Run a call that writes to its arguments without a tape."""
    recording_kernel.refuse_overlap(entry, operator, args, kwargs)
    plan: Plan = entry.plan  # type: ignore[assignment]
    storages: list[Any] = [tensor.untyped_storage() for tensor in written_by(operator, args, kwargs)]
    before = [storage.value for storage in storages]
    way = alone
    while way.shortcut is not None:
        outputs, values = way.shortcut.results_on(device)
        taken = eager_cache.taken(way, call[1], before)
        if taken is not None and taken.are_free(besides=1):  # their storage
            # In their places before they are computed: from there on no other thread finds what the program takes.
            placed = stores(storages, "value", values)
            undo = stores(storages, "value", before)
            draws = _draws(plan, args, kwargs, device)
            try:
                eager_cache.run(way, outputs, call[2], draws, chain(placed, taken.refusal()), undo)
                return recording_kernel.returned_by(operator, args, kwargs), None
            except StillHeld:
                pass  # another thread was faster
        if way is not alone:
            break
        way = eager_cache.if_held(alone)
    return _record(entry, operator, args, kwargs, call, device, way)


class _Recorded(NamedTuple):
    """A call that is on the tape: what the next one like it is found by, and what is known of this one."""

    device: Device
    key: Any  # None: it is not learnt from
    code: tuple[object, ...]
    slots: list[int]
    into: list[int]
    numbers: tuple[tuple[Any, ...], tuple[Any, ...]]  # of the tape, before and after those of the call

    def run(self, learns: bool) -> None:
        """Run the recorded operations, without the lock, so that others continue during a compilation."""
        sync_device(self.device)
        if not learns or self.key is None:
            return
        with LOCK:
            schedule = self.device.last_schedule
            # Not if another thread, or a finalizer, had something else run with it.
            if isinstance(schedule, Schedule) and schedule.code == self.code:
                eager_cache.learn(self.key, self.slots, self.into, self.numbers, schedule)


def _record(
    entry: Entry,
    operator: Operator,
    args: tuple[object, ...],
    kwargs: dict[str, Any],
    call: Call,
    device: Device,
    alone: eager_cache.EagerCall | None,
) -> tuple[object, _Recorded]:
    """Record the call; if it was `alone`, the next equal call needs no tape."""
    plan: Plan = entry.plan  # type: ignore[assignment]
    tape = device.tape
    results = recording_kernel.append(
        plan, call, device, recording_kernel.generator_of(args, kwargs) if plan.draws else None
    )
    made = recording_kernel.give(entry, operator, args, kwargs, results, call[1])
    if entry.writes:
        results = [value_of(tensor) for tensor in written_by(operator, args, kwargs)]
    into = [value.slot for value in results]
    key, slots = (alone.key, [value.slot for value in alone.values]) if alone is not None else (None, [])
    if entry.writes and sum(value.spec.numel * value.spec.dtype.itemsize for value in results) >= _WORTH_TAKING:
        # The old value is overwritten without being read: the program may reuse its buffer.
        call[1].clear()
        if alone is not None:
            alone.values.clear()
    results.clear()  # what was written through a view is needed in its place only
    if tape.ended:  # a finalizer had a part of it evaluated
        key = None
    return made, _Recorded(device, key, tuple(tape.code), slots, into, _around(plan, tape))


def _around(plan: Plan, tape: Tape) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Return the numbers on the tape before and after those of `plan`."""
    first = 0
    for entry in tape.code:
        if entry is plan:
            break
        if entry.__class__ is Plan:
            first += len(entry.numbers)
    return tuple(tape.numbers[:first]), tuple(tape.numbers[first + len(plan.numbers) :])


def _is_nothing_yet(operands: list[Any]) -> bool:
    values: list[Value] = [operand[0] if operand.__class__ is tuple else operand for operand in operands]
    return all(value.state == "empty" for value in values)
