"""Find the operation that XLA cannot compile, so that only it and what needs it are lost."""

from collections.abc import Sequence

import jax

from ..atomic import uncollected
from ..compat.names import jax as private
from ..ir.graph import Graph, Operation, walk
from .executable_key import Key, key_of
from .jax_function import lowered
from .source_metadata import UNKNOWN
from .stages.stage_cuts import Stage
from .xla_compile import compiled


def of(graph: Graph, key: Key, numbers: Sequence[float | int]) -> int | None:
    """Return the index of the operation with which the shortest beginning of the graph ends that XLA refuses.

    `None` if it takes the graph now, or refuses everything (an option that it does not know), or has no memory left;
    or takes that operation alone, for then its like elsewhere in the graph are none to blame; and where a program runs
    on several devices, whose compilation may need all processes.
    """
    if key.target.axis is not None or key.target.is_spread or not _refuses(graph, key, numbers):
        return None
    taken, refused = 0, len(graph.operations)
    if _refuses(_beginning(graph, 0), key, numbers):
        return None
    while refused - taken > 1:
        middle = (taken + refused) // 2
        if _refuses(_beginning(graph, middle), key, numbers):
            refused = middle
        else:
            taken = middle
    alone, own = _alone(graph, refused - 1), graph.operations[refused - 1]
    given = numbers[own.first_number : own.first_number + len(own.plan.numbers)]
    return refused - 1 if _refuses(alone, key, given) else None


def of_stages(stages: Sequence[Stage], key: Key, numbers: Sequence[float | int]) -> int | None:
    """Do as `of` for a graph in stages: compile each kind of stage separately, and search the failing ones."""
    for stage in {stage.kind: stage for stage in stages}.values():
        index = of(stage.graph, key, [numbers[number] for number in stage.numbers])
        if index is not None:
            return stage.operations[index]
    return None


def _beginning(graph: Graph, count: int) -> Graph:
    """Return the first operations, which give all that the others and the graph's outputs use."""
    used = {slot for operation in graph.operations[count:] for slot in operation.operands}.union(graph.outputs)
    made = [slot for _, slots in list(walk(graph))[:count] for slot in slots]
    return Graph(graph.inputs, graph.operations[:count], tuple(slot for slot in made if slot in used))


def _alone(graph: Graph, index: int) -> Graph:
    """Return one operation, of operands that are all inputs."""
    plan = graph.operations[index].plan
    inputs = tuple(graph.specs[slot] for slot in graph.operations[index].operands)
    count = len(inputs)
    operation = Operation(plan, tuple(range(count)), 0, 0 if plan.draws else -1, count, 0)
    return Graph(inputs, (operation,), tuple(range(count, count + len(plan.outputs))))


@uncollected
def _refuses(graph: Graph, key: Key, numbers: Sequence[float | int]) -> bool:
    try:
        compiled(lowered(graph, key_of(graph, (), key.target), numbers, UNKNOWN), key.target)
    except jax.errors.JaxRuntimeError as error:
        if private.is_interrupt(error):
            raise KeyboardInterrupt from error
        return True
    return False
