"""Cut a graph into stages that run one after the other, so that equal stages are compiled once.

Where to cut is found in `partitioner`; here each stage becomes a graph with slots, numbers and draws of its own. Two
stages are equal if their graphs are, however they were found: the same operations and wiring, inputs of the same sizes,
the same results needed afterwards, the same inputs given away.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...ir.graph import Graph, Operation
from ...ir.input_output_alias import given_to_successors, in_order, successors
from . import optimizer_chunks, partitioner, repeated_subgraphs
from .partitioner import Piece

# XLA's CPU client starts 32 executables ahead of the device; the one after makes the host wait.
MOST_STAGES = 30
# Starting a stage costs the host about 40 µs. A stage should move enough bytes to hide that: on the host's own cores,
# and on a device that moves more in this time.
LEAST_BYTES_ON_HOST = 4 << 20
LEAST_BYTES = 64 << 20
# A round of an optimizer's step moves what it reads and writes through memory, while layers find much in the caches.
LEAST_BYTES_OF_ROUND = 1 << 20


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a graph. `graph` counts slots, numbers and draws by itself; all else here is in those of the whole."""

    graph: Graph
    donated: tuple[int, ...]  # inputs that are not used afterwards, replaced by a result
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    numbers: tuple[int, ...]
    draws: tuple[int, int]  # from, up to
    operations: tuple[int, ...]  # for each operation, its index in the whole graph
    done_with: tuple[int, ...]  # values held between stages that no stage after this one uses
    is_an_end: bool  # no later stage reads what it makes

    @property
    def kind(self) -> object:
        """Return the kind of the stage: stages of one kind share an executable."""
        return self.graph.code, self.donated


def of(
    graph: Graph, donated: Sequence[int], spared: int, least_bytes: int, at_most: float = math.inf
) -> tuple[Stage, ...]:
    """Return the stages of a graph, of whose inputs those at `donated` may be given away, each of `least_bytes` or so.

    None if they would not spare the compilation of `spared` operations. There
    are about `MOST_STAGES`, and never more than `at_most`.
    """
    if not spared or _size(graph) <= spared or not _is_divisible(graph):
        return ()
    most = int(min(MOST_STAGES, at_most, _traffic(graph) // least_bytes))
    parts = partitioner.in_stages(graph, most) if most > repeated_subgraphs.FEWEST else []
    while len(parts) > at_most and most > repeated_subgraphs.FEWEST:
        most -= 1
        parts = partitioner.in_stages(graph, most)
    if not 2 <= len(parts) <= at_most:
        return ()
    stages = _stages(graph, frozenset(donated), parts)
    return stages if spared_by(stages) >= spared else ()


def of_rounds(graph: Graph, donated: Sequence[int], at_most: float = math.inf) -> tuple[Stage, ...]:
    """Return the stages, on the host's own cores, of a graph that is left whole but for the rounds of an optimizer's
    step.
    """
    parts = optimizer_chunks.in_rounds(graph, at_most, LEAST_BYTES_OF_ROUND) if _is_divisible(graph) else []
    return _stages(graph, frozenset(donated), parts) if parts else ()


def _is_divisible(graph: Graph) -> bool:
    """Return whether no value passes through unchanged, or is returned twice."""
    return len(set(graph.outputs)) == len(graph.outputs) and min(graph.outputs) >= len(graph.inputs)


def spared_by(stages: Sequence[Stage]) -> int:
    """Return the number of operations that equal stages save; an operation on lists counts by its results."""
    compiled = {stage.kind: stage for stage in stages}
    return sum(_size(stage.graph) for stage in stages) - sum(_size(stage.graph) for stage in compiled.values())


def _size(graph: Graph) -> int:
    """Return the number of operations to compile."""
    return sum(map(_weight, graph.operations))


# Operations that are an optimizer's whole step, with the operations on lists that each is made of.
_WHOLE_STEPS = {"aten._fused_": 4, "xla.multi_tensor_sgd": 4, "xla.multi_tensor_adam": 8}


def _weight(operation: Operation) -> int:
    # The elements of a list are small operations, which XLA fuses: four of them count as one.
    elements, name = max(operation.plan.structure, default=1), str(operation.plan.op)
    made_of = next((count for start, count in _WHOLE_STEPS.items() if name.startswith(start)), 1)
    return max(1, elements * made_of // 4)


def _traffic(graph: Graph) -> int:
    """Return the bytes that the operations read and write, each by itself."""
    bytes_of = [spec.numel * int(spec.dtype.itemsize) for spec in graph.specs]
    read = sum(bytes_of[slot] for operation in graph.operations for slot in operation.operands)
    return read + sum(bytes_of[len(graph.inputs) :])


def repeated(stages: Sequence[Stage]) -> list[tuple[int, int]]:
    """Return the count and the number of operations of each kind of stage that occurs more than once, sorted."""
    found = Counter(stage.kind for stage in stages)
    sizes = {stage.kind: _size(stage.graph) for stage in stages}
    return sorted(((times, sizes[kind]) for kind, times in found.items() if times > 1), key=lambda x: -x[0] * x[1])


def _stages(graph: Graph, donated: frozenset[int], parts: Sequence[Sequence[Piece]]) -> tuple[Stage, ...]:
    last_read = {slot: at for at, part in enumerate(parts) for piece in part for slot in piece.operands}
    kept = frozenset(graph.outputs)
    stages: list[Stage] = []
    draws = 0
    for at, part in enumerate(parts):
        made = {slot for piece in part for slot in piece.outputs}
        inputs = tuple(dict.fromkeys(slot for piece in part for slot in piece.operands if slot not in made))
        outputs = [slot for piece in part for slot in piece.outputs if slot in kept or last_read.get(slot, at) > at]
        # Only this function holds what was made in between.
        own = [slot >= len(graph.inputs) or slot in donated for slot in inputs]
        ending = [mine and last_read[slot] == at and slot not in kept for slot, mine in zip(inputs, own, strict=True)]
        own_graph, numbers, taken = _graph(graph, part, inputs, outputs, ending)
        stages.append(
            Stage(
                own_graph,
                taken,
                inputs,
                tuple(outputs),
                numbers,
                (draws, draws + own_graph.draws),
                tuple(piece.operation for piece in part),
                tuple(slot for slot, ends in zip(inputs, ending, strict=True) if ends),
                all(last_read.get(slot, at) <= at for slot in outputs),
            )
        )
        draws += own_graph.draws
    return tuple(stages)


def _graph(
    graph: Graph, part: Sequence[Piece], inputs: tuple[int, ...], outputs: list[int], ending: Sequence[bool]
) -> tuple[Graph, tuple[int, ...], tuple[int, ...]]:
    """Return the graph of a stage, its numbers, and the inputs it gives away; puts `outputs` in an order that suits
    these.
    """
    slots = {slot: index for index, slot in enumerate(inputs)}
    numbers: list[int] = []
    operations: list[Operation] = []
    draws = 0
    for piece in part:
        operands = tuple(slots[slot] for slot in piece.operands)
        draw = draws if piece.draw >= 0 else -1
        operations.append(Operation(piece.plan, operands, len(numbers), draw, len(slots), piece.operation))
        slots.update(zip(piece.outputs, range(len(slots), len(slots) + len(piece.outputs)), strict=True))
        numbers += piece.numbers
        draws += piece.plan.draws
    specs = tuple(graph.specs[slot] for slot in inputs)
    found = Graph(specs, tuple(operations), tuple(slots[slot] for slot in outputs))
    successor = successors(found)
    taken = given_to_successors(found, ending, successor)
    outputs[:] = [outputs[index] for index in in_order(found, taken, successor)]
    return replace(found, outputs=tuple(slots[slot] for slot in outputs)), tuple(numbers), taken
