"""A replay: run the program of a watched call on the memory that the function would have read and written.

The guards compare everything that the function read with its state at the recording (`guards`). Then the program runs
with the present values, and the results are stored as in the recorded call. Nothing is recorded, and none of the user's
Python runs.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch

from ... import metrics
from ...atomic import stores, uncollected
from ...compat.names import torch as private
from ...compat.patches.autograd_observers import hooks_of_nodes
from ...compile import program_cache
from ...compile.program import Program
from ...ir.graph import Cut
from ...ir.tape import Value
from ...ir.value_spec import Spec
from ...metrics.events import Cause
from ...metrics.observers import observers
from ...runtime import buffers as client
from ...step import executor
from ...step.liveness import may_be_taken
from ...step.step import Step, lines_of
from ...step.sync import compute
from ...step.unlocked_compile import wait_for_turn
from ...tensor.device import LOCK, Device
from ...tensor.host_known_values import contents_of
from ...tensor.storage import value_of, wrap
from .argument_spec import Call
from .call_record import Facts, OuterMemory
from .global_state import changed, circumstances
from .gradients import NOTHING, Gradients
from .io_binding import BoundProgram
from .node_hooks import NodeHooks
from .scalar_program import HostProgram
from .small_tensor_packing import Packing
from .value_guards import Checked
from .version_counters import VersionChanges
from .watched_call import inputs_of

_replayed = metrics.counter("ReplayedStep")

_storage = torch.Tensor.untyped_storage
_offset = torch.Tensor.storage_offset
_spec = attrgetter("spec")
_buffer = attrgetter("buffer")

# The message where another replay may fit, for other gradients.
OTHER_GRADIENTS = "a gradient is there that was not there, or the other way round"
_OTHER_MEMORY = "memory that it overwrites is also held by something else, or was given another shape"


class _Constant:
    """Stands among the storages for a value that is the same at every call."""

    def __init__(self, value: Value) -> None:
        self.value = value


class Replay:
    """One recorded call, ready to be made again."""

    def __init__(self, facts: Facts, call: Call, device: Device, packed: Program | None = None) -> None:
        """Replay the call of `facts`; if its program is `packed`, small values are packed at once."""
        schedule, reached = facts.schedule, facts.reached
        assert schedule is not None and schedule.program is not None and reached is not None
        self.runs = 0
        self._facts = facts
        self._device = device
        self._schedule = schedule
        self._circumstances = circumstances(device)
        self._node_hooks = NodeHooks(facts.leaves, [*call.tensors, *reached.tensors])
        self._reached = reached
        reached.accept_all()
        places = facts.places
        self._arguments = [place.argument for place in places if place.argument >= 0]
        # A place is where it is in `facts.places`; constants come behind.
        storages: list[Any] = [place.tensor.untyped_storage() for place in places[len(self._arguments) :]]
        inputs: list[int] = []
        for slot, spec in zip(schedule.cut.inputs, schedule.cut.graph.inputs, strict=True):
            source = facts.sources[slot]
            if not isinstance(source, int):
                storages.append(_Constant(_constant(source, spec.plain, device)))
                source = len(self._arguments) + len(storages) - 1
            inputs.append(source)
        self._storages = storages
        self._gradients = Gradients(facts, self._used(inputs), self._written_specs(), device)
        kept = self._gradients.dropped  # a holder of a gradient that was replaced keeps it
        donated = tuple(i for i in schedule.program.donated if inputs[i] < len(places) and inputs[i] not in kept)
        program = schedule.program
        # Other processes may record this call: what several run together must not depend on who replays.
        self.is_of_another_program = donated != program.donated
        self._is_another = self.is_of_another_program and len(program.target.processes) > 1
        if self.is_of_another_program:
            program = program_cache.program_of(schedule.cut.graph, donated, program.target)
        self._numbers = tuple([facts.numbers[i] for i in schedule.cut.numbers])
        self._host = HostProgram(facts.host, facts.numbers, schedule.cut.numbers) if facts.host is not None else None
        facts.host = None
        self._draws = schedule.cut.draws
        self._plain = self._planned(program, inputs)
        kept_apart = {place for pair in self._sharing for place in pair}
        kept_apart.update(facts.returned.owners if facts.returned else ())
        kept_apart.update(place for source, to, _ in self._moved for place in (source, to))
        self._packing = Packing(self._plain, storages, len(self._arguments), kept_apart, self._plain.program is packed)
        self._guard(reached.tensors)
        self._release_unused(inputs)
        self._steps = VersionChanges(facts)
        facts.written = []
        # Whether an argument is also something the function sees decides what its writes mean.
        seen = {id(storage) for storage in self._tensor_storages}
        self._seen_storages = seen
        self._aliases = [
            id(storage) if id(storage) in seen else None
            for storage in (place.tensor.untyped_storage() for place in places[: len(self._arguments)])
        ]
        self._settled_gradients: set[int] = set()
        # Whether an argument is that very tensor: the function may ask.
        self._positions = {id(tensor): index for index, tensor in enumerate(self._tensors)}
        self._identical = self._identities(call)
        self._release_arguments(places)
        self._checked = [Checked(argument, asked) for argument, asked in facts.checked.items()]
        self.passed(self.numbers(call))

    @property
    def leaves(self) -> list[torch.Tensor]:
        """Those whose gradients it reads or writes."""
        return self._facts.leaves

    @property
    def packed(self) -> Program | None:
        """Return the program, if it was worth it to pack its small values."""
        return self._plain.program if self._packing.has_paid(self.runs) else None

    def numbers(self, call: Call) -> list[Any]:
        """Return the host-known numbers of the arguments whose numbers a recording reads."""
        return [contents_of(value_of(call.tensors[each.argument])) for each in self._checked]

    def admits(self, numbers: Sequence[Any]) -> bool:
        """Return whether recording would do with these what it did."""
        return all(map(Checked.admits, self._checked, numbers))

    def passed(self, numbers: Sequence[Any]) -> None:
        """Remember numbers that a recorded call accepted."""
        for each, known in zip(self._checked, numbers, strict=True):
            each.passed(known)

    def _guard(self, tensors: list[torch.Tensor]) -> None:
        """Note how the tensors that it sees show their memory: each must do so at every call, and show the same
        memory.
        """
        self._tensors = tensors
        self._tensor_storages = [tensor.untyped_storage() for tensor in tensors]
        self._geometry = self._geometry_now()
        # A tensor of its whole memory always begins at the start.
        self._parts = [tensor for tensor in tensors if tensor.nbytes != tensor.untyped_storage().nbytes()]
        self._offsets = list(map(_offset, self._parts))
        self._guards = private.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)

    @staticmethod
    def _release_arguments(places: list[OuterMemory]) -> None:
        """Release the arguments of the call it was recorded from, which belong to the caller."""
        places[:] = [replace(place, tensor=NOTHING) if place.argument >= 0 else place for place in places]

    def _identities(self, call: Call) -> list[int | None]:
        return list(map(self._positions.get, map(id, call.tensors)))

    def _used(self, inputs: list[int]) -> set[int]:
        """Return the places that the program reads or writes."""
        facts = self._facts
        used = {*inputs, *facts.sinks, *(place for sharing in facts.sharing for place in sharing)}
        return used | {facts.sources[slot] for slot in facts.sinks.values() if slot in facts.sources}

    def _written_specs(self) -> dict[int, Spec]:
        """Return the spec of the value that is stored to each written place."""
        specs, entered = dict(enumerate(self._schedule.cut.graph.specs)), dict(inputs_of(self._facts.code))
        cut = self._schedule.cut
        number = {slot: cut.graph.outputs[index] for index, slot in enumerate(cut.outputs)}
        sinks = self._facts.sinks.items()
        return {place: entered[slot] if slot in self._facts.sources else specs[number[slot]] for place, slot in sinks}

    def _release_unused(self, inputs: list[int]) -> None:
        """Release memory that the program neither reads nor writes, such as the gradients before the last."""
        used = self._used(inputs)
        for index in range(len(self._arguments), len(self._facts.places)):
            if index not in used or self._facts.places[index].leaf >= 0:
                self._storages[index - len(self._arguments)] = None

    def _planned(self, program: Program, inputs: list[int]) -> BoundProgram:
        """Return where each output of the program goes: in place of a value that was donated, to other memory, or
        back.
        """
        facts, graph = self._facts, program.graph
        layout = BoundProgram(program, inputs)
        number = {slot: index for index, slot in enumerate(self._schedule.cut.outputs)}
        # Places that shared one value were read once: they must still share it.
        self._sharing = [(first, other) for first, *others in facts.sharing for other in others]
        given_away = {inputs[index]: index for index in program.donated}
        wanted = Counter([*facts.sinks.values(), *facts.new.values()])
        self._moved: list[tuple[int, int, Any]] = []  # (place whose value goes there, place, spec)
        entered = dict(inputs_of(facts.code))
        for place, slot in facts.sinks.items():
            if slot in facts.sources:
                self._moved.append((facts.sources[slot], place, entered[slot].plain))
                continue
            output = number[slot]
            spec = graph.specs[graph.outputs[output]]
            into = given_away.get(place)
            # One buffer belongs to one value: what goes to several places is one value in all of them. And a value with
            # a copy on the host (a few integers) must not change.
            alone = wanted[slot] == 1 and spec.dtype.is_floating_point
            if into is not None and graph.inputs[into].plain is spec and alone:
                layout.in_place.append((output, into))
            else:
                layout.elsewhere.append((output, place, spec))
        layout.new = {key: number[slot] for key, slot in facts.new.items()}
        return layout

    def _geometry_now(self) -> list[object]:
        tensors = self._tensors
        return [
            [tensor.shape for tensor in tensors],
            [tensor.stride() for tensor in tensors],
            [tensor.requires_grad for tensor in tensors],
        ]

    def hindrance(self) -> str:
        """Return why the function must be recorded this time, or nothing."""
        if observers.inspect_step is not None:
            return "a debugging tool looks at the operations of every step"
        if self._is_another:
            return "it exchanges values with other processes by a program that is compiled for recorded calls alone"
        if self._circumstances != circumstances(self._device):
            return f"{changed(self._circumstances, circumstances(self._device))} has changed"
        if self._node_hooks.count != hooks_of_nodes() and not self._node_hooks.unchanged():
            return "a hook was registered on an autograd node of its backward pass, or removed"
        if not all(map(is_, map(_storage, self._tensors), self._tensor_storages)):
            return "a tensor that it sees was given other memory"
        if list(map(_offset, self._parts)) != self._offsets:
            return "a tensor that it sees shows another part of its memory"
        # The guards also look at which dispatch keys are on, which does not matter here.
        if not self._guards.check(*self._tensors) and self._geometry_now() != self._geometry:
            return "a tensor that it sees has another shape, or requires a gradient no longer"
        if not self._gradients.are_there():
            return OTHER_GRADIENTS
        if not self._gradients.fit():
            return "a gradient has another form"
        if not self._reached.unchanged():
            differences = self._reached.differences()
            return f"{differences[0]}" if differences else "something that it sees has changed"
        return ""

    def sees_the_same(self) -> bool:
        """Return whether all that the function sees is as it was."""
        return self._reached.unchanged()

    @uncollected  # a finalizer that writes to the same memory comes before or after
    def run(self, call: Call) -> tuple[str, object]:
        """Return why the program could not be run on what the memory holds now, or "" and what the function returns."""
        self._packing.prepare(self.runs, self._device, self._prepare)
        wait_for_turn(self._plain.program)
        reason, result = self._run(call)
        # Another thread may have recorded a write there that has not run yet.
        if reason is _OTHER_MEMORY and self._compute(call):
            reason, result = self._run(call)
        if not reason:
            self.runs += 1
            _replayed.value += 1
        return reason, result

    def _compute(self, call: Call) -> bool:
        """Start what the values that it reads or writes wait for; return whether there was any."""
        places = [*(call.tensors[index].untyped_storage() for index in self._arguments), *self._storages]
        values: list[Value] = [place.value for place in places if getattr(place, "value", None) is not None]
        pending = [value for value in values if value.buffer is None and value.tape is not None]
        if pending:
            compute(pending)
        return bool(pending)

    def _run(self, call: Call) -> tuple[str, Any]:
        with LOCK:
            arguments: list[Any] = [call.tensors[index].untyped_storage() for index in self._arguments]
            if self._gradients.enter(self._storages, len(arguments)):
                if not self._settle_gradients():
                    return _OTHER_MEMORY, None
                self._packing.rebind(self.runs)
            if not self._alias_the_same(arguments) or self._identities(call) != self._identical:
                return _OTHER_MEMORY, None
            layout = self._packing.layout(self.runs)
            storages = arguments + self._storages
            if layout is not self._plain:
                storages += self._packing.packs()
            values: list[Value] = [storages[place].value for place in layout.inputs]
            moved: list[Value] = [storages[source].value for source, _, _ in self._moved]
            if any(map(is_, map(_buffer, values), repeat(None))) or not self._fit(layout, storages, values, moved):
                return _OTHER_MEMORY, None
            numbers = self._numbers if self._host is None else self._host.compute()
            if isinstance(numbers, str):
                return numbers, None
            # Nothing is refused any more: the random state moves on.
            draws = None
            if self._draws:
                draw = self._device.generator.draw
                states = [draw() for _ in range(self._facts.draws)]
                draws = [states[index] for index in self._draws]
            made = {output: Value(spec, self._device, None, -1) for output, spec in layout.made}
            step = self._step(layout, storages, values, moved, made, call.tensors)
            step.numbers, step.draws = numbers, draws
            executor.run(step)
            self._packing.note_run(layout)
            return "", self._result(layout, call, made)

    def _fit(self, layout: BoundProgram, storages: list[Any], values: list[Value], moved: list[Value]) -> bool:
        """Return whether the memory has the forms and shares values as it did, and may be overwritten."""
        if any([storages[one].value is not storages[other].value for one, other in self._sharing]):
            return False
        if not all(map(is_, map(_spec, values), layout.specs)) or not self._may_donate(layout, values):
            return False
        if self._device.spread is not None and not self._lies_as_before(layout, values):
            return False
        if any([storages[place].value.spec is not spec for _, place, spec in layout.elsewhere]):
            return False
        for value, (_, _, spec) in zip(moved, self._moved, strict=True):
            if value.spec is not spec or value.buffer is None:
                return False
        return True

    def _lies_as_before(self, layout: BoundProgram, values: list[Value]) -> bool:
        """Return whether each value is divided among the devices as the program takes it."""
        return all(map(is_, map(self._device.placed, values), layout.program.graph.inputs))

    def _settle_gradients(self) -> bool:
        """Return whether the gradients it reads or adds to are memory of their own."""
        storages = [id(self._storages[place - len(self._arguments)]) for _, place in self._gradients.found]
        self._settled_gradients = set(storages)
        return len(self._settled_gradients) == len(storages) and not self._settled_gradients & self._seen_storages

    def _alias_the_same(self, arguments: Sequence[object]) -> bool:
        for storage, alias in zip(arguments, self._aliases, strict=True):
            if id(storage) in self._settled_gradients:
                return False
            if (id(storage) if id(storage) in self._seen_storages else None) != alias:
                return False
        return True

    @staticmethod
    def _may_donate(layout: BoundProgram, values: list[Value]) -> bool:
        return may_be_taken([values[index] for index in layout.donated], besides=1)  # `values`

    def _step(
        self,
        layout: BoundProgram,
        storages: list[Any],
        values: list[Value],
        moved: list[Value],
        made: dict[int, Value],
        arguments: list[torch.Tensor],
    ) -> Step:
        """Return the run of a call: the value of each output, and what else the call changes. All together, or
        nothing.
        """
        found, packed = self._packing.results(layout)
        found.update(made)
        for output, into in layout.in_place:
            found[output] = values[into]
        replaced = [storages[place] for _, place, _ in layout.elsewhere]
        leaves, gradients = self._gradients.left()
        read = [storages[place] for place in layout.rewritten]
        written, together = self._steps.of(arguments)
        graph = layout.program.graph
        for output, slot in enumerate(graph.outputs):
            if output not in found:  # read by the executor alone, or computed for several readers
                found[output] = Value(graph.specs[slot], self._device, None, -1)
        return Step(
            layout.program,
            values,
            [found[output] for output in range(len(graph.outputs))],
            source_lines=self._lines(layout),
            # Release the replaced values before the program runs. Most are gradients of the last call, whose memory the
            # new gradients need.
            before=stores(replaced, "value", [made[output] for output, _, _ in layout.elsewhere]),
            after=chain(
                stores([storages[place] for _, place, _ in self._moved], "value", moved),
                *packed,
                stores(leaves, "grad", gradients),
                map(private.increment_version, (written,)),
                together,
                self._host.settled() if self._host is not None else (),
            ),
            undo=stores(read, "value", [storage.value for storage in read]),
        )

    def _result(self, layout: BoundProgram, call: Call, made: dict[int, Value]) -> object:
        returned = self._facts.returned
        assert returned is not None
        sources: dict[Any, Any] = {key: wrap(made[output]) for key, output in layout.new.items()}
        for place in returned.owners:
            each = self._facts.places[place]
            if each.leaf >= 0:
                sources[place] = self._facts.leaves[each.leaf].grad
            else:
                sources[place] = call.tensors[each.argument] if each.argument >= 0 else each.tensor
        return returned.make(sources)

    def _prepare(self, layout: BoundProgram) -> None:
        executor.prepare(layout.program, self._numbers, Cause.SYNC, self._lines(layout))

    def _lines(self, layout: BoundProgram) -> Callable[[], tuple[Any, ...]]:
        """Return a function that returns the lines of the program's operations, and holds no buffers."""
        return functools.partial(
            _lines_between, self._schedule.cut, self._schedule.lines, layout.updated, layout.program.graph.operations
        )


def _lines_between(
    part: Cut, lines: Any, updated: Sequence[object], operations: Sequence[object]
) -> tuple[tuple[str, int, str] | None, ...]:
    found = lines_of(part, lines)
    before = len(updated)
    return (*[None] * before, *found, *[None] * (len(operations) - len(found) - before))


def _constant(array: np.ndarray, spec: Spec, device: Device) -> Value:
    value = Value(spec, device, None, -1)
    value.buffer = client.put(array, device.target)
    return value
