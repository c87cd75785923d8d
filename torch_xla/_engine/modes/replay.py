"""A step function that is not called any more: its program is run on the memory it would have read and written.

What the function saw is compared with what it saw when it was recorded (`reach`); then its program runs with the values
its memory holds now, and the results go where they went. Nothing is recorded, and no Python of the user's runs.
"""

import functools
from collections import Counter
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch

from .. import dtypes, metrics
from ..client import buffers as client
from ..compile import cache
from ..compile.program import Program
from ..execute import executor
from ..graph.spec import Spec
from ..graph.tape import Value
from ..metrics.events import Cause
from ..private import torch as private
from ..tensor import census, sync
from ..tensor.device import LOCK, Device
from ..tensor.generator import keys_of
from ..tensor.storage import wrap
from .layout import Layout
from .packing import Packing
from .recording import GRADIENT, Facts, Place, inputs_of
from .references import OF_A_PARAMETER, OWNED, Constant, of_gradients, references
from .signature import Call

_replayed = metrics.counter("ReplayedStep")

_storage = torch.Tensor.untyped_storage
_offset = torch.Tensor.storage_offset
_spec = attrgetter("spec")
_gradient = attrgetter("grad")


_NOTHING = torch.empty(0)


def circumstances(device: Device) -> tuple[Any, ...]:
    """What of PyTorch's state a recorded program depends on."""
    return (
        device.index,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla"),
        torch.get_autocast_dtype("xla"),
        torch.get_default_dtype(),
        dtypes.device_mode(),
    )


class Replay:
    """One recorded call, ready to be made again."""

    def __init__(self, facts: Facts, device: Device) -> None:
        schedule, reached = facts.schedule, facts.reached
        assert schedule is not None and schedule.program is not None and reached is not None
        self.runs = 0
        self._facts = facts
        self._device = device
        self._schedule = schedule
        self._circumstances = circumstances(device)
        self._reached = reached
        reached.settle()
        places = facts.places
        self._arguments = [place.argument for place in places if place.argument >= 0]
        # A place is where it is in `facts.places`; constants come behind.
        storages: list[Any] = [place.tensor.untyped_storage() for place in places[len(self._arguments) :]]
        inputs: list[int] = []
        for slot, spec in zip(schedule.cut.inputs, schedule.cut.graph.inputs, strict=True):
            source = facts.sources[slot]
            if not isinstance(source, int):
                storages.append(Constant(_constant(source, spec, device)))
                source = len(self._arguments) + len(storages) - 1
            inputs.append(source)
        self._storages = storages
        donated = tuple(i for i in schedule.program.donated if inputs[i] < len(places))
        program = schedule.program
        if donated != program.donated:
            program = cache.program_of(schedule.cut.graph, donated, device.jax_device)
        self._numbers = [facts.numbers[i] for i in schedule.cut.numbers]
        self._draws = schedule.cut.draws
        self._plain = self._planned(program, inputs)
        kept_apart = {place for pair in self._sharing for place in pair}
        kept_apart.update(facts.returned.owners if facts.returned else ())
        kept_apart.update(place for source, to, _ in self._moved for place in (source, to))
        self._packing = Packing(self._plain, storages, len(self._arguments), kept_apart)
        # Guards on tensors: each must show the same memory in the same way.
        self._tensors = reached.tensors
        self._tensor_storages = [tensor.untyped_storage() for tensor in self._tensors]
        self._geometry = self._geometry_now()
        # What shows the whole of its memory has no other place to begin.
        self._parts = [tensor for tensor in self._tensors if tensor.nbytes != tensor.untyped_storage().nbytes()]
        self._offsets = list(map(_offset, self._parts))
        self._guards = private.TensorGuards(*self._tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self._release_unused()
        self._plan_gradients()
        # Whether an argument is also something the function sees decides what its writes mean.
        seen = {id(storage) for storage in self._tensor_storages}
        seen.update(id(gradient.untyped_storage()) for gradient in self._gradients)
        self._seen_storages = seen
        self._aliases = [
            id(storage) if id(storage) in seen else None
            for storage in (place.tensor.untyped_storage() for place in places[: len(self._arguments)])
        ]
        self._count_gradients()

    def _release_unused(self) -> None:
        """Lets go of memory that the program neither reads nor writes, such as the gradients before the last."""
        used = {*self._plain.inputs, *self._facts.sinks, *(place for pair in self._sharing for place in pair)}
        used.update(source for source, _, _ in self._moved)
        for index in range(len(self._arguments), len(self._facts.places)):
            if index not in used:
                self._storages[index - len(self._arguments)] = None
                if self._facts.places[index].path == GRADIENT:
                    self._facts.places[index] = Place(_NOTHING, GRADIENT)

    def _planned(self, program: Program, inputs: list[int]) -> Layout:
        """Where each output of the program goes: in place of a value that was donated, to other memory, or back."""
        facts, graph = self._facts, program.graph
        layout = Layout(program, inputs)
        number = {slot: index for index, slot in enumerate(self._schedule.cut.outputs)}
        # What held one value was read once: it must still be one value.
        self._sharing = [(first, other) for first, *others in facts.sharing for other in others]
        given_away = {inputs[index]: index for index in program.donated}
        wanted = Counter([*facts.sinks.values(), *facts.new.values()])
        self._moved: list[tuple[int, int, Any]] = []  # (place whose value goes there, place, spec)
        entered = dict(inputs_of(facts.code))
        for place, slot in facts.sinks.items():
            if slot in facts.sources:
                self._moved.append((facts.sources[slot], place, entered[slot]))
                continue
            output = number[slot]
            spec = graph.specs[graph.outputs[output]]
            into = given_away.get(place)
            # One buffer belongs to one value: what goes to several places is one value in all of them. And a value with
            # a copy on the host (a few integers) must not change.
            alone = wanted[slot] == 1 and spec.dtype.is_floating_point
            if into is not None and graph.inputs[into] is spec and alone:
                layout.in_place.append((output, into))
            else:
                layout.elsewhere.append((output, place, spec))
        layout.new = {key: number[slot] for key, slot in facts.new.items()}
        return layout

    def _geometry_now(self) -> list[Any]:
        tensors = self._tensors
        return [
            [tensor.shape for tensor in tensors],
            [tensor.stride() for tensor in tensors],
            [tensor.requires_grad for tensor in tensors],
        ]

    def _plan_gradients(self) -> None:
        facts = self._facts
        known = {id(place.tensor.untyped_storage()) for place in facts.places}
        # Of a gradient that it neither reads nor writes it matters only that there is one: another replay makes it.
        self._only_there: list[torch.Tensor] = []
        self._leaves: list[torch.Tensor] = []
        self._before: list[torch.Tensor | None] = []
        self._handed_out: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index, (leaf, had) in enumerate(zip(facts.leaves, facts.had_gradient, strict=True)):
            gradient = facts.gradients[index]
            if had and gradient is not None and id(gradient.untyped_storage()) not in known:
                self._only_there.append(leaf)
                facts.gradients[index] = None
                continue
            self._leaves.append(leaf)
            # What takes a gradient away does not find it the next time: none is `_NOTHING`.
            self._before.append((_NOTHING if gradient is None else gradient) if had else None)
            if gradient is not None and not had:
                self._handed_out.append((leaf, gradient))
        self._gradients = [gradient for gradient in facts.gradients if gradient is not None]

    def _count_gradients(self) -> None:
        """Notes how often each gradient is held before a call: those that it hands out are not there then."""
        handed_out = {id(gradient) for _, gradient in self._handed_out}
        counts = of_gradients(self._gradients)
        self._references = [
            count - (OF_A_PARAMETER if id(gradient) in handed_out else 0)
            for count, gradient in zip(counts, self._gradients, strict=True)
        ]

    def hindrance(self) -> str:
        """Why the function must be recorded this time, or nothing."""
        if sync.inspect is not None:
            return "a debugging tool looks at the operations of every step"
        if self._circumstances != circumstances(self._device):
            return "autocast, gradients, the default dtype or the device were switched"
        if not all(map(is_, map(_storage, self._tensors), self._tensor_storages)):
            return "a tensor that it sees was given other memory"
        if list(map(_offset, self._parts)) != self._offsets:
            return "a tensor that it sees shows another part of its memory"
        # The guards also look at which dispatch keys are on, which does not matter here.
        if not self._guards.check(*self._tensors) and self._geometry_now() != self._geometry:
            return "a tensor that it sees has another shape, or requires a gradient no longer"
        if not all(map(is_, map(_gradient, self._leaves), self._before)) or any(
            map(is_, map(_gradient, self._only_there), repeat(None))
        ):
            return "a gradient is there that was not there, or the other way round"
        if of_gradients(self._gradients) != self._references:
            return "somebody holds a gradient of the last call"
        if not self._reached.unchanged():
            differences = self._reached.differences()
            return f"{differences[0]}" if differences else "something that it sees has changed"
        return ""

    def run(self, call: Call) -> tuple[bool, Any]:
        """Whether the program could be run on what the memory holds now, and what the function would have returned."""
        with LOCK:
            arguments: list[Any] = [call.tensors[index].untyped_storage() for index in self._arguments]
            if not self._alias_the_same(arguments):
                return False, None
            layout = self._packing.layout(self.runs, self._device, self._prepare)
            storages = arguments + self._storages
            if layout is not self._plain:
                storages += self._packing.packs()
            values: list[Value] = [storages[place].value for place in layout.inputs]
            moved: list[Value] = [storages[source].value for source, _, _ in self._moved]
            buffers = [value.buffer for value in values]
            if any(map(is_, buffers, repeat(None))) or not self._fit(layout, storages, values, moved):
                return False, None
            # Nothing is refused any more: the random state moves on.
            keys = None
            if self._draws:
                draw = self._device.generator.draw
                states = [draw() for _ in range(self._facts.draws)]
                keys = keys_of([states[index] for index in self._draws])
            read = [(storages[place], storages[place].value) for place in layout.rewritten]
            made = self._forget_overwritten(layout, storages)
            try:
                lines = functools.partial(self._lines, layout)
                outputs = executor.run(layout.program, buffers, self._numbers, keys, Cause.SYNC, lines)
            except BaseException:
                for storage, value in read:
                    storage.value = value
                raise
            self._distribute(layout, storages, values, moved, made, outputs)
            result = self._result(layout, call, made)
        self.runs += 1
        _replayed.value += 1
        census.buffers.value += len(outputs)
        return True, result

    def _fit(self, layout: Layout, storages: list[Any], values: list[Value], moved: list[Value]) -> bool:
        """Whether the memory has the forms and shares values as it did, and may be overwritten."""
        if any([storages[one].value is not storages[other].value for one, other in self._sharing]):
            return False
        if not all(map(is_, map(_spec, values), layout.specs)) or not self._may_donate(layout, values):
            return False
        if any([storages[place].value.spec is not spec for _, place, spec in layout.elsewhere]):
            return False
        for value, (_, _, spec) in zip(moved, self._moved, strict=True):
            if value.spec is not spec or value.buffer is None:
                return False
        return True

    def _alias_the_same(self, arguments: list[Any]) -> bool:
        for storage, alias in zip(arguments, self._aliases, strict=True):
            if (id(storage) if id(storage) in self._seen_storages else None) != alias:
                return False
        return True

    @staticmethod
    def _may_donate(layout: Layout, values: list[Value]) -> bool:
        given = [values[index] for index in layout.donated]
        counts = references(given)
        del given
        if counts.count(OWNED + 1) != len(counts):
            return False
        return not any([values[index].shared for index in layout.donated])

    def _forget_overwritten(self, layout: Layout, storages: list[Any]) -> dict[int, Value]:
        """The values of the outputs that do not go in place. What they replace is given up before the program runs."""
        # Gradients of the last call, mostly: their memory is needed for those of this one.
        device = self._device
        made = {output: Value(spec, device, None, -1) for output, spec in layout.made}
        for output, place, _ in layout.elsewhere:
            storages[place].value = made[output]
        return made

    def _distribute(
        self,
        layout: Layout,
        storages: list[Any],
        values: list[Value],
        moved: list[Value],
        made: dict[int, Value],
        outputs: Any,
    ) -> None:
        for value, (_, place, _) in zip(moved, self._moved, strict=True):
            storages[place].value = value
        for output, into in layout.in_place:
            values[into].buffer = outputs[output]
        for output, value in made.items():
            value.buffer = outputs[output]
        self._packing.take(layout, outputs)
        for leaf, gradient in self._handed_out:
            leaf.grad = gradient
        private.increment_version(self._facts.written)

    def _result(self, layout: Layout, call: Call, made: dict[int, Value]) -> Any:
        returned = self._facts.returned
        assert returned is not None
        sources: dict[Any, Any] = {key: wrap(made[output]) for key, output in layout.new.items()}
        for place in returned.owners:
            each = self._facts.places[place]
            sources[place] = call.tensors[each.argument] if each.argument >= 0 else each.tensor
        return returned.make(sources)

    def _prepare(self, layout: Layout) -> None:
        executor.prepare(layout.program, self._numbers, Cause.SYNC, functools.partial(self._lines, layout))

    def _lines(self, layout: Layout) -> Any:
        lines = sync.lines_of(self._schedule.cut, self._schedule.lines)
        before = len(layout.updated)
        behind = len(layout.program.graph.operations) - len(lines) - before
        return (*[None] * before, *lines, *[None] * behind)


def _constant(array: np.ndarray, spec: Spec, device: Device) -> Value:
    value = Value(spec, device, None, -1)
    value.buffer = client.put(array, device.jax_device)
    return value
