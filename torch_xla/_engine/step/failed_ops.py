"""Remove a failed operation from its tape, so that later syncs do not fail again.

That is an operation that cannot be compiled, one whose Python on the host has raised, one that needs what a program had
taken when it failed, and one that needs a tensor without memory. Where memory does not suffice, the operations stay.
Writes that were recorded after either are undone (`undone_writes`).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, repeat

from ..atomic import run_through, stores
from ..compile.program import culprits_of
from ..errors import ExecutionError, NotComputed, OutOfMemory
from ..ir.call_plan import Plan
from ..ir.graph import Operation, cut, decode
from ..ir.tape import Failed, Value
from ..runtime import abstract_devices
from ..runtime.abstract_buffer import Placeholder
from ..tensor import live_counters
from ..tensor.device import LOCK, Device, existing_devices
from .liveness import look
from .residual_ops import carry_over
from .step import Changed, Schedule, end_of, tape_after, unchanged
from .undone_writes import undo_behind, undo_without_room


def prune(error: Exception, devices: Iterable[Device]) -> None:
    """Take off every tape what cannot be computed any more after this `error` of a program that was run or compiled.

    The program was to compute values of these `devices`.
    """
    plans, why = culprits_of(error)
    is_gone = _was_lost
    if abstract_devices.active and isinstance(error, (NotComputed, OutOfMemory)):
        return  # all tensors are without memory while a step is planned
    if isinstance(error, OutOfMemory):
        undo_without_room(devices)
    if isinstance(error, NotComputed):
        is_gone, why = _has_no_memory, str(error)
    elif not plans and not isinstance(error, ExecutionError):
        return
    if plans:
        undo_behind(partial(_fails, plans))
    with LOCK:
        for device in existing_devices():
            _drop(plans, is_gone, Failed(why), device)


def _was_lost(value: Value) -> bool:
    return isinstance(value.tape, Failed)


def _has_no_memory(value: Value) -> bool:
    buffer = value.buffer
    return _was_lost(value) or isinstance(buffer, Placeholder) or (buffer is not None and buffer.is_deleted())


def _drop(plans: Sequence[Plan], is_gone: Callable[[Value], bool], failed: Failed, device: Device) -> None:
    while not _dropped(plans, is_gone, failed, device):
        pass


def _dropped(plans: Sequence[Plan], is_gone: Callable[[Value], bool], failed: Failed, device: Device) -> bool:
    """Take the operations of `plans` off the tape of `device`, and all that need their results or a value that is gone.

    Each later use of such a result raises. Returns False if the tape has changed meanwhile.
    """
    tape = device.tape
    seen = look(tape)
    if seen is None:
        return False
    inputs, operations, _ = decode(seen.code)
    gone = {slot for slot in inputs if is_gone(seen.values[slot])}
    lost, kept = set[int](), []
    for operation in operations:
        if _fails(plans, operation) or not (gone | lost).isdisjoint(operation.operands):
            lost.update(range(operation.first_output, operation.first_output + len(operation.plan.outputs)))
        else:
            kept.append(operation)
    if not lost:
        return True
    left = Schedule(seen.live, None, cut(inputs, operations, (), ()), seen.code, tape.all_lines(seen.code), kept)
    fresh = tape_after(left, device)
    settled, unheld = carry_over(left, tape, fresh, seen, device)
    ends = chain(settled, end_of(tape, fresh, device))
    marks = stores([seen.values[slot] for slot in lost], "tape", repeat(failed))
    try:
        run_through(chain(unchanged(tape, seen.length), ends, marks))
    except Changed:
        return False
    live_counters.values.value += len(lost) + unheld
    return True


def _fails(plans: Sequence[Plan], operation: Operation) -> bool:
    """Return whether the operation is one of `plans`, or a compiled function with one in it."""
    return any(_contains(operation.plan, plan) for plan in plans)


def _contains(plan: Plan, culprit: Plan) -> bool:
    """Return whether this is the culprit, or a compiled function in which it is."""
    inner = plan.inside() if plan is not culprit and plan.inside is not None else None
    return plan is culprit or (inner is not None and any(each.plan is culprit for each in inner.operations))
