"""A graph: the operations that some values need, cut out of a tape, ordered and renumbered."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from .call_plan import Plan
from .side_effects import Effect
from .value_spec import Spec


@dataclass(frozen=True, slots=True)
class Operation:
    """One recorded call: a plan with the slots it reads and the first of the slots it fills."""

    plan: Plan
    operands: tuple[int, ...]
    first_number: int
    draw: int  # the first of its random keys; -1: it takes none
    first_output: int
    position: int  # of the plan in the tape's code: where its source line is found

    def key(self, keys: Any) -> jax.Array | np.generic | np.ndarray | None:
        """Return its random keys of a run: one, an array of several, or `None`."""
        count = self.plan.draws
        if not count or keys is None:
            return None
        return keys[self.draw] if count == 1 else keys[self.draw : self.draw + count]


@dataclass(frozen=True)
class Graph:
    """The operations of one program. Slots 0..len(inputs)-1 are the inputs, the operations fill the rest in order."""

    inputs: tuple[Spec, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]

    @cached_property
    def specs(self) -> tuple[Spec, ...]:
        """The spec of every slot."""
        specs = list(self.inputs)
        for operation in self.operations:
            specs.extend(operation.plan.outputs)
        return tuple(specs)

    @cached_property
    def number_types(self) -> tuple[type, ...]:
        """The Python types of the numbers, in order."""
        return tuple(t for operation in self.operations for t in operation.plan.numbers)

    @cached_property
    def draws(self) -> int:
        """Return the number of random keys that the graph takes."""
        return sum(operation.plan.draws for operation in self.operations)

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        """Return the side effects of its operations, in order."""
        return tuple(operation.plan.effect for operation in self.operations if operation.plan.effect is not None)

    @cached_property
    def is_collective(self) -> bool:
        """Return whether all processes must run it together."""
        return any(effect.is_collective for effect in self.effects)

    @cached_property
    def code(self) -> tuple[object, ...]:
        """The graph as a flat hashable tuple: equal graphs have equal codes."""
        code: list[Any] = [len(self.inputs), *self.inputs]
        for operation in self.operations:
            code.append(operation.plan)
            code.extend(operation.operands)
        return (*code, None, *self.outputs)


def decode(code: Sequence[Any]) -> tuple[dict[int, Spec], list[Operation], list[int]]:
    """Return a tape's code as its inputs by slot, its operations, and the operation that fills each slot (-1: none)."""
    inputs: dict[int, Spec] = {}
    operations: list[Operation] = []
    producer: list[int] = []
    number = draw = position = 0
    while position < len(code):
        entry = code[position]
        if isinstance(entry, Spec):
            inputs[len(producer)] = entry
            producer.append(-1)
            position += 1
            continue
        end = position + 1 + len(entry.operands)
        operations.append(
            Operation(
                entry, tuple(code[position + 1 : end]), number, draw if entry.draws else -1, len(producer), position
            )
        )
        producer.extend([len(operations) - 1] * len(entry.outputs))
        number += len(entry.numbers)
        draw += entry.draws
        position = end
    return inputs, operations, producer


def needed(
    operations: Sequence[Operation],
    producer: Sequence[int],
    roots: Iterable[int],
    available: Container[int] = frozenset(),
    effects: Iterable[int] = (),
) -> list[int]:
    """Return the operations that `roots` depend on, in order; slots in `available` are there already.

    The operations at `effects` are needed for what else they do.
    """
    wanted = [False] * len(operations)
    for index in effects:
        wanted[index] = True
    for root in roots:
        if producer[root] >= 0:
            wanted[producer[root]] = True
    for index in range(len(operations) - 1, -1, -1):
        if wanted[index]:
            for slot in operations[index].operands:
                if producer[slot] >= 0 and slot not in available:
                    wanted[producer[slot]] = True
    return [index for index, yes in enumerate(wanted) if yes]


def effective(operations: Sequence[Operation]) -> list[int]:
    """Return the operations that have an effect."""
    return [index for index, operation in enumerate(operations) if operation.plan.effect is not None]


def needed_in_order(operations: Sequence[Operation], producer: Sequence[int], roots: Iterable[int]) -> list[int]:
    """Return the operations that `roots` depend on, in order; if one has an effect, with all effects that come before
    it.
    """
    roots = list(roots)
    chosen = needed(operations, producer, roots)
    last = next((index for index in reversed(chosen) if operations[index].plan.effect is not None), -1)
    return needed(operations, producer, roots, effects=effective(operations[: last + 1])) if last >= 0 else chosen


def slots_of(operations: Sequence[Operation], chosen: Iterable[int]) -> list[int]:
    """Return the slots that the `chosen` operations fill."""
    return [
        operations[index].first_output + part for index in chosen for part in range(len(operations[index].plan.outputs))
    ]


@dataclass(frozen=True, slots=True)
class Cut:
    """A graph with the way back to the tape it was cut from: which slots, numbers and draws of the tape it uses."""

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    numbers: tuple[int, ...]
    draws: tuple[int, ...]
    positions: tuple[int, ...]


def cut(inputs: dict[int, Spec], operations: Sequence[Operation], chosen: Sequence[int], outputs: Sequence[int]) -> Cut:
    """Return the graph of the `chosen` operations that gives the slots `outputs`."""
    # In the order of their use: where a value entered for an operation that is left out says nothing of the graph.
    used = dict.fromkeys(slot for index in chosen for slot in operations[index].operands)
    used.update(dict.fromkeys(outputs))
    kept = [slot for slot in used if slot in inputs]
    new_slot = {slot: index for index, slot in enumerate(kept)}
    renumbered: list[Operation] = []
    numbers: list[int] = []
    draws: list[int] = []
    for index in chosen:
        old = operations[index]
        first = len(new_slot)
        new = Operation(
            old.plan,
            tuple(new_slot[slot] for slot in old.operands),
            len(numbers),
            len(draws) if old.plan.draws else -1,
            first,
            old.position,
        )
        renumbered.append(new)
        numbers.extend(range(old.first_number, old.first_number + len(old.plan.numbers)))
        draws.extend(range(old.draw, old.draw + old.plan.draws))
        for k in range(len(old.plan.outputs)):
            new_slot[old.first_output + k] = first + k
    graph = Graph(tuple(inputs[slot] for slot in kept), tuple(renumbered), tuple(new_slot[slot] for slot in outputs))
    positions = tuple(operations[index].position for index in chosen)
    return Cut(graph, tuple(kept), tuple(outputs), tuple(numbers), tuple(draws), positions)


def walk(graph: Graph) -> Iterator[tuple[Operation, range]]:
    """Yield every operation with the slots it fills."""
    for operation in graph.operations:
        yield operation, range(operation.first_output, operation.first_output + len(operation.plan.outputs))
