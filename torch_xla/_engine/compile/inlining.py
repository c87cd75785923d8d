"""Replace composite operations of a graph by the operations inside them, as if each had been recorded."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.graph import Graph, Operation
from .source_metadata import Origins


@dataclass(frozen=True, slots=True)
class Inlined:
    """The graph, and for each of its operations the one of the graph before that it is, or is inside of."""

    graph: Graph
    origin: Sequence[int]

    def origins(self, origins: Origins) -> Origins:
        """Return those of the graph before, for this one."""
        return origins.part(self.origin)


def inlined(graph: Graph) -> Inlined:
    """Return `graph`, its wholes opened. Inputs, numbers, random keys and outputs are the same, in the same order."""
    if all(operation.plan.inside is None for operation in graph.operations):
        return Inlined(graph, range(len(graph.operations)))
    slots: list[int] = list(range(len(graph.inputs)))  # where each slot of `graph` is in the new one
    operations: list[Operation] = []
    origin: list[int] = []
    count = len(graph.inputs)
    for index, operation in enumerate(graph.operations):
        inner = _inside(operation)
        if inner is None:
            operands = tuple(slots[slot] for slot in operation.operands)
            plan = operation.plan
            operations.append(
                Operation(plan, operands, operation.first_number, operation.draw, count, operation.position)
            )
            origin.append(index)
            slots += range(count, count + len(plan.outputs))
            count += len(plan.outputs)
            continue
        own = [slots[slot] for slot in operation.operands]
        for each in inner.operations:
            operands = tuple(own[slot] for slot in each.operands)
            draw = operation.draw + each.draw if each.plan.draws else -1
            operations.append(Operation(each.plan, operands, operation.first_number, draw, count, operation.position))
            origin.append(index)
            own += range(count, count + len(each.plan.outputs))
            count += len(each.plan.outputs)
        slots += [own[slot] for slot in inner.outputs]
    return Inlined(Graph(graph.inputs, tuple(operations), tuple(slots[slot] for slot in graph.outputs)), origin)


def _inside(operation: Operation) -> Graph | None:
    """Return the graph inside an operation, if it fits in its place."""
    plan = operation.plan
    inner = plan.inside() if plan.inside is not None and not plan.numbers else None
    if not isinstance(inner, Graph):
        return None
    specs = inner.specs
    given = [(spec.size, spec.dtype) for spec in inner.inputs]
    made = [(specs[slot].size, specs[slot].dtype) for slot in inner.outputs]
    fits = given == [(spec.size, spec.dtype) for spec in plan.operands] and inner.draws == plan.draws
    return inner if fits and made == [(spec.size, spec.dtype) for spec in plan.outputs] else None
