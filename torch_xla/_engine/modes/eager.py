"""Eager mode: each operation runs when it is called, by a program of its own that is compiled once.

What shows an operand in another order, and a write through a view, are part of the operation's program. Constants,
operations that read nothing, wait for the first operation that reads them. So do random numbers that fill memory nobody
has written to.
"""

import time
from itertools import chain
from typing import Any

from .. import metrics
from ..dispatch import kernels
from ..dispatch.forms import Operator
from ..dispatch.planning import Call, Entry
from ..execute.executor import Around
from ..graph.plan import Plan
from ..graph.tape import Value
from ..record import eager_cache
from ..record.device import LOCK, Device, existing_devices
from ..record.storage import value_of
from ..record.sync import sync_device
from ..uninterrupted import stores

# Writing over so many bytes saves more than it costs to find out that nobody else holds them.
_WORTH_TAKING = 1 << 16

_is_on = False
_compiles = metrics.counter("UncachedCompile")
_executing = metrics.metric("EagerOpExecuteTime")
_compiling = metrics.metric("EagerOpCompileTime")


def is_on() -> bool:
    """Whether operations run when they are called; not inside a region."""
    return _is_on


def switch(on: bool) -> None:
    """Turns eager mode on or off. What is recorded when it is turned on is started."""
    global _is_on
    was_on, _is_on = _is_on, on
    kernels.run_at_once(_run if on else None)
    if on and not was_on:
        # Last: it may be interrupted, and then the next operation starts what is left.
        for device in existing_devices():
            sync_device(device)


def _run(entry: Entry, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    _, operands, numbers = call
    plan: Plan = entry.plan  # type: ignore[assignment]
    if plan.draws and _is_nothing_yet(operands):
        return kernels.record_call(entry, operator, args, kwargs, call)
    compiled, start = _compiles.value, time.perf_counter_ns()
    device = kernels.device_of(operands, kwargs)
    with LOCK:
        alone = eager_cache.look_up(entry, operands, device)
        if alone is None or alone.shortcut is None:
            made = _run_tape(entry, operator, args, kwargs, call, device, alone)
        elif entry.writes:
            made = _write(entry, operator, args, kwargs, call, device, alone)
        else:
            outputs, values = alone.shortcut.results_on(device)
            eager_cache.run(alone, outputs, numbers, _draws(plan, args, kwargs, device))
            made = kernels.give(entry, operator, args, kwargs, values)
    took = time.perf_counter_ns() - start
    _executing.add(took)
    if _compiles.value != compiled:
        _compiling.add(took)
    return made


def _draws(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], device: Device) -> list[int]:
    return kernels.draw(plan, device, kernels.generator_of(args, kwargs)) if plan.draws else []


def _write(
    entry: Entry,
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: Call,
    device: Device,
    alone: eager_cache.Call,
) -> Any:
    """Runs a call that writes to its arguments without a tape."""
    kernels.refuse_overlap(entry, operator, args, kwargs)
    plan: Plan = entry.plan  # type: ignore[assignment]
    storages: list[Any] = [tensor.untyped_storage() for tensor in kernels.written_by(operator, args, kwargs)]
    before = [storage.value for storage in storages]
    way = alone
    while way.shortcut is not None:
        outputs, values = way.shortcut.results_on(device)
        taken = eager_cache.taken(way, call[1], before) if way.shortcut.gives else eager_cache.NOTHING
        if taken is eager_cache.NOTHING or (taken is not None and taken.are_free(besides=1)):  # their storage
            # In their places before they are computed: from there on no other thread finds what the program takes.
            placed = stores(storages, "value", values)
            around = Around(chain(placed, taken.refusal()), undo=stores(storages, "value", before))
            try:
                eager_cache.run(way, outputs, call[2], _draws(plan, args, kwargs, device), around)
                return kernels.returned_by(operator, args, kwargs)
            except eager_cache.Held:
                pass  # another thread was faster
        if way is not alone:
            break
        way = eager_cache.if_held(alone)
    return _run_tape(entry, operator, args, kwargs, call, device, way)


def _run_tape(
    entry: Entry,
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: Call,
    device: Device,
    alone: eager_cache.Call | None,
) -> Any:
    """Records the call and runs what is recorded; if it was `alone`, the next one like it needs no tape."""
    plan: Plan = entry.plan  # type: ignore[assignment]
    results = kernels.append(plan, call, device, kernels.generator_of(args, kwargs) if plan.draws else None)
    made = kernels.give(entry, operator, args, kwargs, results)
    if entry.writes:
        results = [value_of(tensor) for tensor in kernels.written_by(operator, args, kwargs)]
    into = [value.slot for value in results]
    key, slots = (alone.key, [value.slot for value in alone.values]) if alone is not None else (None, [])
    if entry.writes and sum(value.spec.numel * value.spec.dtype.itemsize for value in results) >= _WORTH_TAKING:
        # What was there before is not needed at all: the program may take it.
        call[1].clear()
        if alone is not None:
            alone.values.clear()
    results.clear()  # what was written through a view is needed in its place only
    sync_device(device)
    if key is not None:
        eager_cache.learn(key, slots, into, device.last_schedule)
    return made


def _is_nothing_yet(operands: list[Any]) -> bool:
    values: list[Value] = [operand[0] if operand.__class__ is tuple else operand for operand in operands]
    return all(value.buffer is None and value.tape is None for value in values)
