"""A step function that is not called any more: its program is run on the memory it would have read and written.

What the function saw is compared with what it saw when it was recorded (`reach`); then its program runs with the values
its memory holds now, and the results go where they went. Nothing is recorded, and no Python of the user's runs.
"""

from collections import Counter
from itertools import repeat
from operator import attrgetter, is_
from sys import getrefcount
from typing import Any

import numpy as np
import torch

from .. import dtypes, metrics
from ..client import buffers as client
from ..compile import cache
from ..execute import executor
from ..graph.spec import Spec
from ..graph.tape import Value
from ..metrics.events import Cause
from ..private import torch as private
from ..tensor import census, sync
from ..tensor.device import LOCK, Device, uninitialised
from ..tensor.generator import keys_of
from ..tensor.storage import wrap
from .recording import GRADIENT, Facts, Place, inputs_of
from .signature import Call

_replayed = metrics.counter("ReplayedStep")

_storage = torch.Tensor.untyped_storage
_offset = torch.Tensor.storage_offset
_spec = attrgetter("spec")


_NOTHING = torch.empty(0)


class _Constant:
    """Stands among the storages for a value that is the same at every call."""

    def __init__(self, value: Value) -> None:
        self.value = value


def _references(values: list[Value]) -> list[int]:
    return [getrefcount(value) for value in values]


def _references_of_owned() -> int:
    constant = _Constant(uninitialised((), (), torch.float32, None))  # type: ignore[arg-type]
    return _references([constant.value])[0]


# What a value counts that one storage holds, and the list it is looked at in.
_OWNED = _references_of_owned()


def _references_of_a_parameter() -> int:
    parameter, gradient = torch.ones(1, requires_grad=True), torch.ones(1)
    before = getrefcount(gradient)
    parameter.grad = gradient
    return getrefcount(gradient) - before


# What a gradient counts because it is the gradient of a parameter.
_REFERENCES_OF_A_PARAMETER = _references_of_a_parameter()


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
        self._specs = list(schedule.cut.graph.inputs)
        self._inputs: list[int] = []
        for slot, spec in zip(schedule.cut.inputs, self._specs, strict=True):
            source = facts.sources[slot]
            if not isinstance(source, int):
                storages.append(_Constant(_constant(source, spec, device)))
                source = len(self._arguments) + len(storages) - 1
            self._inputs.append(source)
        self._storages = storages
        donated = tuple(i for i in schedule.program.donated if self._inputs[i] < len(places))
        self._program = schedule.program
        if donated != schedule.program.donated:
            self._program = cache.program_of(schedule.cut.graph, donated, device.jax_device)
        self._donated = donated
        self._numbers = [facts.numbers[i] for i in schedule.cut.numbers]
        self._draws = schedule.cut.draws
        self._plan_outputs()
        # Guards on tensors: each must show the same memory in the same way.
        self._tensors = reached.tensors
        self._tensor_storages = [tensor.untyped_storage() for tensor in self._tensors]
        self._geometry = self._geometry_now()
        self._offsets = list(map(_offset, self._tensors))
        self._guards = private.TensorGuards(*self._tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self._gradients = [gradient for gradient in facts.gradients if gradient is not None]
        self._gradient_owners = [
            (leaf, gradient)
            for leaf, gradient in zip(facts.leaves, facts.gradients, strict=True)
            if gradient is not None
        ]
        # Whether an argument is also something the function sees decides what its writes mean.
        seen = {id(storage) for storage in self._tensor_storages}
        seen.update(id(gradient.untyped_storage()) for _, gradient in self._gradient_owners)
        self._seen_storages = seen
        self._aliases = [
            id(storage) if id(storage) in seen else None
            for storage in (place.tensor.untyped_storage() for place in places[: len(self._arguments)])
        ]
        self._release_unused()
        self._references = self._references_now()

    def _release_unused(self) -> None:
        """Lets go of memory that the program neither reads nor writes, such as the gradients before the last."""
        used = {*self._inputs, *self._facts.sinks, *(place for pair in self._sharing for place in pair)}
        used.update(source for source, _, _ in self._moved)
        for index in range(len(self._arguments), len(self._facts.places)):
            if index not in used:
                self._storages[index - len(self._arguments)] = None
                if self._facts.places[index].path == GRADIENT:
                    self._facts.places[index] = Place(_NOTHING, GRADIENT)

    def _plan_outputs(self) -> None:
        """Where each output of the program goes: in place of a value that was donated, to other memory, or back."""
        facts, graph = self._facts, self._schedule.cut.graph
        number = {slot: index for index, slot in enumerate(self._schedule.cut.outputs)}
        specs = [graph.specs[slot] for slot in graph.outputs]
        # What held one value was read once: it must still be one value.
        self._sharing = [(first, other) for first, *others in facts.sharing for other in others]
        given_away = {self._inputs[index]: index for index in self._donated}
        wanted = Counter([*facts.sinks.values(), *facts.new.values()])
        self._in_place: list[tuple[int, int]] = []  # (output, input whose value takes it)
        self._elsewhere: list[tuple[int, int, Any]] = []  # (output, place, spec)
        self._moved: list[tuple[int, int, Any]] = []  # (place whose value goes there, place, spec)
        entered = dict(inputs_of(facts.code))
        for place, slot in facts.sinks.items():
            if slot in facts.sources:
                self._moved.append((facts.sources[slot], place, entered[slot]))
                continue
            output = number[slot]
            spec = specs[output]
            into = given_away.get(place)
            # One buffer belongs to one value: what goes to several places is one value in all of them. And a value with
            # a copy on the host (a few integers) must not change.
            alone = wanted[slot] == 1 and spec.dtype.is_floating_point
            if into is not None and self._specs[into] is spec and alone:
                self._in_place.append((output, into))
            else:
                self._elsewhere.append((output, place, spec))
        self._new = {key: number[slot] for key, slot in facts.new.items()}
        made = [*(output for output, _, _ in self._elsewhere), *self._new.values()]
        self._made = [(output, specs[output]) for output in dict.fromkeys(made)]

    def _geometry_now(self) -> list[Any]:
        tensors = self._tensors
        return [
            [tensor.shape for tensor in tensors],
            [tensor.stride() for tensor in tensors],
            [tensor.requires_grad for tensor in tensors],
        ]

    def _gradients_fit(self) -> bool:
        facts = self._facts
        for leaf, had, after in zip(facts.leaves, facts.had_gradient, facts.gradients, strict=True):
            now = leaf.grad
            if (now is not None) is not had or (now is not None and now is not after):
                return False
        return True

    def _references_now(self) -> list[int]:
        return [
            getrefcount(gradient) + (0 if leaf.grad is gradient else _REFERENCES_OF_A_PARAMETER)
            for leaf, gradient in self._gradient_owners
        ]

    def hindrance(self) -> str:
        """Why the function must be recorded this time, or nothing."""
        if sync.inspect is not None:
            return "a debugging tool looks at the operations of every step"
        if self._circumstances != circumstances(self._device):
            return "autocast, gradients, the default dtype or the device were switched"
        if not all(map(is_, map(_storage, self._tensors), self._tensor_storages)):
            return "a tensor that it sees was given other memory"
        if list(map(_offset, self._tensors)) != self._offsets:
            return "a tensor that it sees shows another part of its memory"
        # The guards also look at which dispatch keys are on, which does not matter here.
        if not self._guards.check(*self._tensors) and self._geometry_now() != self._geometry:
            return "a tensor that it sees has another shape, or requires a gradient no longer"
        if not self._gradients_fit():
            return "a gradient is there that was not there, or the other way round"
        if self._references_now() != self._references:
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
            storages = arguments + self._storages
            values: list[Value] = [storages[place].value for place in self._inputs]
            moved: list[Value] = [storages[source].value for source, _, _ in self._moved]
            buffers = [value.buffer for value in values]
            if any(map(is_, buffers, repeat(None))) or not self._fit(storages, values, moved):
                return False, None
            # Nothing is refused any more: the random state moves on.
            keys = None
            if self._draws:
                draw = self._device.generator.draw
                states = [draw() for _ in range(self._facts.draws)]
                keys = keys_of([states[index] for index in self._draws])
            made = self._forget_overwritten(storages)
            outputs = executor.run(self._program, buffers, self._numbers, keys, Cause.SYNC, self._lines)
            self._distribute(storages, values, moved, made, outputs)
            result = self._result(call, made)
        self.runs += 1
        _replayed.value += 1
        census.buffers.value += len(outputs)
        return True, result

    def _fit(self, storages: list[Any], values: list[Value], moved: list[Value]) -> bool:
        """Whether the memory has the forms and shares values as it did, and may be overwritten."""
        if any([storages[one].value is not storages[other].value for one, other in self._sharing]):
            return False
        if not all(map(is_, map(_spec, values), self._specs)) or not self._may_donate(values):
            return False
        if any([storages[place].value.spec is not spec for _, place, spec in self._elsewhere]):
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

    def _may_donate(self, values: list[Value]) -> bool:
        given = [values[index] for index in self._donated]
        references = _references(given)
        del given
        if references.count(_OWNED + 1) != len(references):
            return False
        return not any([values[index].shared for index in self._donated])

    def _forget_overwritten(self, storages: list[Any]) -> dict[int, Value]:
        """The values of the outputs that do not go in place. What they replace is given up before the program runs."""
        # Gradients of the last call, mostly: their memory is needed for those of this one.
        device = self._device
        made = {output: Value(spec, device, None, -1) for output, spec in self._made}
        for output, place, _ in self._elsewhere:
            storages[place].value = made[output]
        return made

    def _distribute(
        self, storages: list[Any], values: list[Value], moved: list[Value], made: dict[int, Value], outputs: Any
    ) -> None:
        for value, (_, place, _) in zip(moved, self._moved, strict=True):
            storages[place].value = value
        for output, into in self._in_place:
            values[into].buffer = outputs[output]
        for output, value in made.items():
            value.buffer = outputs[output]
        for leaf, gradient in self._gradient_owners:
            if leaf.grad is None:
                leaf.grad = gradient
        private.increment_version(self._facts.written)

    def _result(self, call: Call, made: dict[int, Value]) -> Any:
        returned = self._facts.returned
        assert returned is not None
        sources: dict[Any, Any] = {key: wrap(made[output]) for key, output in self._new.items()}
        for place in returned.owners:
            each = self._facts.places[place]
            sources[place] = call.tensors[each.argument] if each.argument >= 0 else each.tensor
        return returned.make(sources)

    def _lines(self) -> Any:
        return sync.lines_of(self._schedule.cut, self._schedule.lines)


def _constant(array: np.ndarray, spec: Spec, device: Device) -> Value:
    value = Value(spec, device, None, -1)
    value.buffer = client.put(array, device.jax_device)
    return value
