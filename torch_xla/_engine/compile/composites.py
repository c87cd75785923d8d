"""Lower marked parts of a graph as composites of StableHLO, which a compiler may replace as a whole, by name.

Marks, `torch.ops.xla.mark_tensor`, name each input and each output of a composite. Other values that the operations
between them read become inputs, too. An incomplete set of marks, as in a program that was cut between them, is ignored.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ..ir.graph import Graph, Operation
from ..lowering.machinery.composite_names import IN_A_GRAPH, qualified
from ..lowering.machinery.manual_regions import Manual

MARK = torch.ops.xla.mark_tensor.default

# The numbers of an operation, and its random key.
_Extra = tuple[Sequence[Any], Any]

# Computes an operation of these operands, numbers and random key.
Compute = Callable[[int, Sequence[Any], Sequence[Any], Any], Sequence[Any]]


@dataclass(frozen=True)
class _Composite:
    name: str
    attributes: dict[str, Any]
    inputs: tuple[int, ...]  # the slots that the marks of its inputs fill, in order
    outputs: tuple[int, ...]
    inside: frozenset[int]  # the operations between the marks, those of its outputs included


def are_in(graph: Graph) -> bool:
    """Return whether a graph, or a graph inside one of its operations, has marks."""
    insides = (operation.plan.inside for operation in graph.operations if operation.plan.inside is not None)
    return any(operation.plan.op is MARK for operation in graph.operations) or any(
        isinstance(inner, Graph) and are_in(inner) for inner in (inside() for inside in insides)
    )


def _of(graph: Graph) -> list[_Composite]:
    marks: dict[tuple[Any, ...], tuple[dict[int, int], dict[int, int], dict[str, Any]]] = {}
    for index, operation in enumerate(graph.operations):
        if operation.plan.op is MARK:
            name, place, identity, is_input, attributes = _arguments(operation)
            where = operation.position if identity.startswith(IN_A_GRAPH) else None
            inputs, outputs, given = marks.setdefault((name, identity, where), ({}, {}, {}))
            (inputs if is_input else outputs)[place] = index
            given.update(json.loads(attributes) if attributes else {})
    made_by = _producers(graph)
    return [
        found
        for (name, *_), (inputs, outputs, given) in marks.items()
        if _is_complete(inputs) and _is_complete(outputs)
        if (found := _composite(graph, made_by, qualified(name), inputs, outputs, given)) is not None
    ]


def _arguments(operation: Operation) -> tuple[str, int, str, bool, str | None]:
    _, name, place, identity, is_input, *rest = operation.plan.arguments[0]
    attributes = rest[0] if rest else operation.plan.arguments[1].get("attr")
    assert isinstance(name, str) and isinstance(place, int) and isinstance(identity, str)
    return name, place, identity, bool(is_input), attributes if isinstance(attributes, str) else None


def _is_complete(marks: dict[int, int]) -> bool:
    return bool(marks) and sorted(marks) == list(range(len(marks)))


def _producers(graph: Graph) -> list[int]:
    made_by = [-1] * len(graph.inputs)
    for index, operation in enumerate(graph.operations):
        made_by += [index] * len(operation.plan.outputs)
    return made_by


def _composite(
    graph: Graph,
    made_by: Sequence[int],
    name: str,
    inputs: dict[int, int],
    outputs: dict[int, int],
    attributes: dict[str, Any],
) -> _Composite | None:
    """Return the composite between these marks; `None` if they do not enclose operations without side effects."""
    operations = graph.operations
    begins, ends = set(inputs.values()), set(outputs.values())
    after: set[int] = set(begins)  # what is computed from the inputs
    for index, operation in enumerate(operations):
        if any(made_by[slot] in after for slot in operation.operands):
            after.add(index)
    inside: set[int] = set()
    open_ones = list(ends)
    while open_ones:
        index = open_ones.pop()
        if index in inside or index in begins:
            continue
        if index in after or not operations[index].operands:  # what reads nothing is a constant of the part
            inside.add(index)
            open_ones += [made_by[slot] for slot in operations[index].operands if made_by[slot] >= 0]
    if not ends <= inside or any(operations[index].plan.effect is not None for index in inside):
        return None
    slots = [tuple(operations[marks[place]].first_output for place in range(len(marks))) for marks in (inputs, outputs)]
    return _Composite(name, attributes, slots[0], slots[1], frozenset(inside))


class GraphRun:
    """The values of a graph, computed operation by operation, and composite by composite."""

    def __init__(self, graph: Graph, inputs: Sequence[object], compute: Compute) -> None:
        self.graph = graph
        self.values: list[Any] = [*inputs, *[None] * (len(graph.specs) - len(inputs))]
        self._compute = compute
        self._composites = [] if all(each.plan.op is not MARK for each in graph.operations) else _of(graph)

    @cached_property
    def _made_by(self) -> list[int]:
        return _producers(self.graph)

    def run(self, numbers: Sequence[object], keys: object) -> list[jax.Array]:
        """Return the values of all slots that are needed."""

        def extra(index: int) -> _Extra:
            operation = self.graph.operations[index]
            first = operation.first_number
            return numbers[first : first + len(operation.plan.numbers)], operation.key(keys)

        if not self._composites:
            for index, operation in enumerate(self.graph.operations):
                self._fill(self.values, index, [self.values[slot] for slot in operation.operands], extra(index))
            return self.values
        level = _Level(self, self.values, extra, self._composites)
        inside = frozenset().union(*(each.inside for each in self._composites))
        ends = {self._made_by[slot] for each in self._composites for slot in each.outputs}
        for index in range(len(self.graph.operations)):
            if index not in inside or index in ends:
                level.compute([index])
        level.compute([self._made_by[slot] for slot in self.graph.outputs if self._made_by[slot] >= 0])
        return self.values

    def _fill(self, values: list[Any], index: int, operands: Sequence[object], extra: _Extra) -> None:
        first = self.graph.operations[index].first_output
        for offset, value in enumerate(self._compute(index, operands, *extra)):
            values[first + offset] = value


class _Level:
    """The values of the program, or of one composite, and the composites directly inside."""

    def __init__(
        self,
        whole: GraphRun,
        values: list[Any],
        extra: Callable[[int], _Extra],
        composites: Sequence[_Composite],
    ) -> None:
        self._whole, self._values, self._extra = whole, values, extra
        self._composites = composites
        self._outermost = [each for each in composites if not any(each.inside < other.inside for other in composites)]
        made_by = whole._made_by
        self._ends = {made_by[slot]: each for each in self._outermost for slot in each.outputs}

    def compute(self, wanted: Iterable[int]) -> None:
        """Compute these operations, and what they need that is not computed yet."""
        operations, made_by, values = self._whole.graph.operations, self._whole._made_by, self._values
        needed: set[int] = set()
        open_ones = list(wanted)
        while open_ones:
            index = open_ones.pop()
            operation = operations[index]
            if index in needed or (operation.plan.outputs and values[operation.first_output] is not None):
                continue
            needed.add(index)
            if index not in self._ends:
                missing = (slot for slot in operations[index].operands if values[slot] is None)
                open_ones += [made_by[slot] for slot in missing]
        for index in sorted(needed):
            if index in self._ends:
                self._call(self._ends[index])
            else:
                operands = [values[slot] for slot in operations[index].operands]
                self._whole._fill(values, index, operands, self._extra(index))

    def _call(self, composite: _Composite) -> None:
        operations, values, made_by = self._whole.graph.operations, self._values, self._whole._made_by
        if values[composite.outputs[0]] is not None:
            return
        inside = sorted(composite.inside)
        read = dict.fromkeys(slot for index in inside for slot in operations[index].operands)
        others = [slot for slot in read if slot not in composite.inputs and made_by[slot] not in composite.inside]
        given = [*composite.inputs, *others]
        self.compute(made_by[slot] for slot in given if values[slot] is None)
        if any(isinstance(values[slot], Manual) for slot in given):  # a call is not divided as its operations are
            self._ends = {index: each for index, each in self._ends.items() if each is not composite}
            self.compute(made_by[slot] for slot in composite.outputs)
            return
        arrays, rebuild = _taken([self._extra(index) for index in inside])

        def part(*operands: object, **_: object) -> tuple[jax.Array, ...]:
            own: list[Any] = [None] * len(values)
            for slot, operand in zip(given, operands, strict=False):
                own[slot] = operand
            extras = dict(zip(inside, rebuild(operands[len(given) :]), strict=True))
            inner = [each for each in self._composites if each.inside < composite.inside]
            level = _Level(self._whole, own, extras.__getitem__, inner)
            level.compute(made_by[slot] for slot in composite.outputs)
            return tuple(jnp.asarray(own[slot]) for slot in composite.outputs)

        operands = [*(jnp.asarray(values[slot]) for slot in given), *arrays]
        results = jax.lax.composite(part, composite.name)(*operands, **composite.attributes)
        for slot, result in zip(composite.outputs, results, strict=True):
            values[slot] = result


def _taken(extras: Sequence[tuple[Sequence[object], object]]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """Return the arrays among the numbers and keys of operations, and what puts others in their places."""
    leaves, tree = jax.tree.flatten([(list(numbers), key) for numbers, key in extras])
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    is_key = [jnp.issubdtype(leaves[place].dtype, jax.dtypes.prng_key) for place in places]

    def rebuild(arrays: Sequence[jax.Array]) -> list[object]:
        filled = list(leaves)
        for place, array, key in zip(places, arrays, is_key, strict=True):
            filled[place] = jax.random.wrap_key_data(array, impl="rbg") if key else array
        found: list[Any] = jax.tree.unflatten(tree, filled)
        return found

    found = zip([leaves[place] for place in places], is_key, strict=True)
    return [jax.random.key_data(leaf) if key else leaf for leaf, key in found], rebuild
