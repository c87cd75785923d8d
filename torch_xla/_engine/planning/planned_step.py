"""Record and compile steps without running them, then restore the previous state.

During a plan each storage on the device holds a substitute for its value, with the same size and placement but without
memory. A sync compiles its program and passes it to the planner instead of running it; its results are substitutes,
too. After the plan, storages, gradients, optimizers and random number generators have their previous values.
"""

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from .. import compiler_options, dtypes, imported_objects
from ..compile.program import Program
from ..compile.program_cache import program_of
from ..ir.graph import Operation, decode
from ..ir.sharding import Sharding
from ..ir.tape import Value
from ..lowering.machinery.jax_sharding import CONSTRAINT, carried, sharding_in, to_jax
from ..metrics.events import Cause
from ..metrics.observers import observers
from ..metrics.user_lines import Line
from ..processes import identity, spmd_mode
from ..processes.identity import Place
from ..runtime import abstract_devices
from ..runtime import device_assignment as targets
from ..runtime.abstract_devices import PlannedBuffer
from ..runtime.buffers import put
from ..runtime.device_assignment import Target
from ..step.schedule import shortcuts
from ..step.step import Step
from ..step.sync import sync_device
from ..tensor.device import LOCK, Device, Mark, current_index, device_at, existing_devices
from ..tensor.random_state import keys_of
from ..tensor.storage import wrap

# Takes a program that would run with its inputs, its outputs, its Python numbers and the lines that it was recorded
# from, and returns how its results are divided, as JAX says it.
Planner = Callable[
    [Program, Sequence[Value], Sequence[Value], Sequence[float | int], Sequence[Line | None]], Sequence[Any]
]


@contextmanager
def planned_step(
    planner: Planner, devices: int | tuple[jax.Device, ...] | None, rank: int | None = None
) -> Iterator[None]:
    """Pass the programs of a block to `planner` instead of running them.

    `devices` is the number of virtual devices, or has those of a topology. With a `rank` each of these is of one
    process, and the block is what the process of that rank does.
    """
    if observers.describe_run is not None:
        raise RuntimeError("plan() was called within a planned step: plans cannot be nested.")
    device_at(current_index())
    elsewhere = devices if isinstance(devices, tuple) else None
    if isinstance(devices, int):
        virtual = abstract_devices.virtual_devices(devices)
        elsewhere = virtual if devices != 1 else None  # one that is here does as well
    gc.collect()  # what only the garbage collector holds would count as held by the program
    with LOCK:
        before = _Before.now()
    try:
        with abstract_devices.in_place_of_buffers(elsewhere, rank), _mode(elsewhere, rank):
            shortcuts.clear()  # of single operations on other devices
            for device in existing_devices():
                _begin(device, elsewhere, rank)
            before.stand_in()
            observers.register("describe_run", partial(_described, planner))
            yield
            for device in existing_devices():
                sync_device(device)
    finally:
        observers.register("describe_run", None)
        shortcuts.clear()
        before.restore()


def _mode(elsewhere: tuple[object, ...] | None, rank: int | None) -> AbstractContextManager[None]:
    """Let the devices be those of one process that programs are divided among, or of one process each."""
    if elsewhere is None:
        return nullcontext()
    if rank is None:
        return spmd_mode.turned_on()
    return identity.standing_in(Place(rank, len(elsewhere), host=rank))


def _begin(device: Device, elsewhere: tuple[object, ...] | None, rank: int | None) -> None:
    # Marks are said of these devices' grid.
    device.marks = dict(device.marks) if elsewhere is None else {}
    device.last_schedule = None
    if elsewhere is not None and rank is not None:
        device.spread_over(elsewhere[rank : rank + 1])
    elif elsewhere is None:
        device.tape = device.new_tape()
    else:
        device.spread_over(elsewhere)


def _described(planner: Planner, step: Step) -> Sequence[Any]:
    """Return buffers without elements for the results of a step, which does not run."""
    program, buffers = step.program, [value.buffer for value in step.inputs]
    placed = planner(program, step.inputs, step.outputs, step.numbers, step.source_lines())
    if step.cause is Cause.READ and _is_known(program, buffers):
        return _computed(program, buffers, step.numbers, keys_of(step.draws) if step.draws else None)
    specs = [program.graph.specs[slot] for slot in program.graph.outputs]
    return [
        PlannedBuffer(carried(spec.size, sharding), dtypes.to_jax(dtypes.on_device(spec.dtype)), sharding)
        for spec, sharding in zip(specs, placed, strict=True)
    ]


# Known values are computed if all intermediate values together have at most this number of bytes.
_MOST_COMPUTED = 1 << 28


def _is_known(program: Program, buffers: Sequence[PlannedBuffer]) -> bool:
    """Return whether the results of a program follow from the user's program alone, and are cheap to compute."""
    graph = program.graph
    if program.bytes > _MOST_COMPUTED or graph.effects or any(spec.sharding is not None for spec in graph.inputs):
        return False
    return all(buffer.contents is not None for buffer in buffers)


def _computed(
    program: Program, buffers: Sequence[PlannedBuffer], numbers: Sequence[float | int], keys: np.ndarray | None
) -> list[PlannedBuffer]:
    """Compute the results of a program on one device, for Python code that decides by them what to record next."""
    everywhere = program.target.everywhere
    undo = compiler_options.choose({})  # those in force are for the compiler of a device that may not be this one
    try:
        with abstract_devices.suspended() as device:
            alone = program_of(program.graph, (), targets.of_device(device))
            given = [put(np.array(buffer.contents), alone.target) for buffer in buffers]
            results = [np.asarray(array) for array in next(alone.start(given, numbers, keys))]
    finally:
        undo()
    return [PlannedBuffer(array.shape, array.dtype, everywhere, array) for array in results]


@dataclass(slots=True)
class _Before:
    """The state before a planned step: everything that the step may change."""

    storages: list[tuple[weakref.ref[Any], Value]] = field(default_factory=list)
    on_host: list[tuple[object, object]] = field(default_factory=list)  # that wait there until they are used
    gradients: list[tuple[torch.Tensor, "_Gradient | None"]] = field(default_factory=list)
    optimizers: list[tuple[torch.optim.Optimizer, dict[Any, Any], list[dict[str, Any]]]] = field(default_factory=list)
    devices: list[tuple[Device, dict[str, Any], int]] = field(default_factory=list)
    marks: list[tuple[Mark, Any, Any]] = field(default_factory=list)
    host_generator: torch.Tensor | None = None

    @classmethod
    def now(cls) -> "_Before":
        """Return all that is alive."""
        found = cls(host_generator=torch.get_rng_state())
        for thing in imported_objects.alive():
            kind = type(thing)  # not `isinstance`: a proxy would begin to work for us
            if issubclass(kind, torch.UntypedStorage):
                value = getattr(thing, "value", None)
                if value is not None:
                    found.storages.append((weakref.ref(thing), value))
                elif getattr(thing, "host", None) is not None:
                    found.on_host.append((thing, thing.host))
            elif issubclass(kind, torch.Tensor):
                if thing.is_leaf and thing.requires_grad and thing.device.type == "xla":
                    found.gradients.append((thing, None if thing.grad is None else _Gradient(thing.grad)))
            elif issubclass(kind, torch.optim.Optimizer) and "state" in vars(thing):  # a wrapper has that of another
                state = {parameter: _copied(own) for parameter, own in thing.state.items()}
                found.optimizers.append((thing, state, [dict(group) for group in thing.param_groups]))
        for device in existing_devices():
            kept = {name: getattr(device, name) for name in ("tape", "spread", "last_schedule", "marks")}
            found.devices.append((device, kept, device.generator.state))
            found.marks += [(mark, mark.settled, mark.seen) for mark in device.marks.values()]
        return found

    def stand_in(self) -> None:
        """Replace each value by a substitute, the same one for all storages that share the value."""
        known: dict[int, Value] = {}
        markings = _Markings()
        for there, value in self.storages:
            if id(value) not in known:
                known[id(value)] = _stand_in(value, markings)
            storage: Any = there()
            storage.value = known[id(value)]

    def restore(self) -> None:
        """Restore everything."""
        for device, kept, state in self.devices:
            for name, value in kept.items():
                setattr(device, name, value)
            device.generator.state = state
        for mark, settled, seen in self.marks:
            mark.settled, mark.seen = settled, seen
        for there, held in self.storages:
            storage: Any = there()
            if storage is not None:
                storage.value = held
        for storage, host in self.on_host:
            storage.host = host
            if getattr(storage, "value", None) is not None:
                del storage.value
        for tensor, gradient in self.gradients:
            tensor.grad = None if gradient is None else gradient.again()
        for optimizer, states, groups in self.optimizers:
            optimizer.state.clear()
            optimizer.state.update(states)
            for group, values in zip(optimizer.param_groups, groups, strict=False):
                group.update(values)
        assert self.host_generator is not None
        torch.set_rng_state(self.host_generator)


class _Gradient:
    """A gradient as it was, without holding it: a step that lets go of its gradients does so when it is planned."""

    def __init__(self, gradient: torch.Tensor) -> None:
        storage = gradient.untyped_storage()
        self._value: Value | None = getattr(storage, "value", None)
        self._place = tuple(gradient.shape), gradient.stride(), gradient.storage_offset()
        self._there: Callable[[], Any] = weakref.ref(gradient)
        if self._value is None or type(gradient) is not torch.Tensor or gradient.grad_fn is not None:
            self._there = lambda: gradient

    def again(self) -> torch.Tensor:
        """Return the gradient, or another tensor of the same value if the gradient had no other reference."""
        there: torch.Tensor | None = self._there()
        if there is not None:
            return there
        assert self._value is not None
        with torch.no_grad():
            return wrap(self._value).as_strided(*self._place)


def _copied(state: object) -> object:
    """Return the state of a parameter with copies of its CPU tensors, which are incremented in place."""
    if not isinstance(state, dict):
        return state
    return {
        name: entry.clone() if isinstance(entry, torch.Tensor) and entry.device.type == "cpu" else entry
        for name, entry in state.items()
    }


class _Markings:
    """How pending values were said to be divided."""

    def __init__(self) -> None:
        self._tapes: dict[int, tuple[list[Operation], list[int]]] = {}

    def of(self, value: Value) -> Sharding | None:
        """Return the last sharding constraint on `value`, if a constraint produced it."""
        tape = value.tape
        if tape is None or tape.ended:
            return None
        if id(tape) not in self._tapes:
            self._tapes[id(tape)] = decode(tape.code)[1:]
        operations, producer = self._tapes[id(tape)]
        if producer[value.slot] < 0:
            return None
        plan = operations[producer[value.slot]].plan
        return sharding_in(plan) if plan.op == CONSTRAINT else None


def _stand_in(value: Value, markings: _Markings) -> Value:
    made = Value(value.spec, value.device, None, -1)
    if value.state == "empty":
        return made  # uninitialised memory
    target: Target = value.device.target
    dtype = dtypes.to_jax(dtypes.on_device(value.spec.dtype))
    placed = _placed(value, target, markings)
    made.buffer = PlannedBuffer(carried(value.spec.size, placed), dtype, placed)
    contents = getattr(value, "contents", None)
    if contents is not None:
        made.contents = contents
    return made


def _placed(value: Value, target: Target, markings: _Markings) -> object:
    """Return the sharding of a value over the devices of the plan: its current one, if it is on these devices."""
    if value.buffer is not None:
        sharding = getattr(value.buffer, "sharding", None)  # that of a placeholder is not known
        is_here = sharding is not None and sharding.device_set == set(target.devices)
        return sharding if is_here else target.everywhere
    marked = markings.of(value)
    return to_jax(marked, target) if marked is not None and target.is_spread else target.everywhere
