"""Choose the shardings of a program's results: a parameter keeps its own, optimizer state takes its parameter's.

XLA chooses a sharding for every value inside a program. The next step reads some results, and a new sharding there
would make the next step another program. The state of an optimizer starts as zeros without a sharding, and could end as
a whole copy on every device.
"""

from collections.abc import Iterable, Iterator

import torch

from ..compat.names.torch import OpOverload
from ..ir.graph import Graph, Operation
from ..ir.input_output_alias import successors
from ..ir.sharding import ANY, MANUAL, Placed, Sharding
from ..lowering.machinery import manual_regions
from ..lowering.machinery.jax_sharding import CONSTRAINT, sharding_in
from ..lowering.machinery.registry import is_separable
from .stages.list_ops import Lists, length_of_lists

# Operations with one result, whose second argument is its sharding.
ASKING = (CONSTRAINT, manual_regions.SHARD_TO_FULL)


def of_outputs(graph: Graph, donated: tuple[int, ...]) -> list[Placed]:
    """Return for each output of a graph its sharding, or that XLA chooses one.

    A result that replaces a donated input keeps its sharding. A result computed elementwise with values of its size
    that share one sharding takes that sharding: so an optimizer's state follows its parameter.
    """
    groups = _Groups(graph)
    found = [groups.sharding_of(slot) for slot in graph.outputs]
    for index, output in successors(graph).items():
        if index in donated:
            found[output] = graph.inputs[index].sharding
    own = manual_regions.slots_of(graph)
    elsewhere = [ANY if placed == MANUAL else placed for placed in found]
    return [MANUAL if slot in own else placed for slot, placed in zip(graph.outputs, elsewhere, strict=True)]


def of_values(graph: Graph, slots: Iterable[int]) -> dict[int, Placed]:
    """Return for those of these values of a graph that must be divided in a way, that way."""
    groups, own = _Groups(graph), manual_regions.slots_of(graph)
    found = {slot: MANUAL if slot in own else groups.sharding_of(slot) for slot in slots}
    return {
        slot: placed
        for slot, placed in found.items()
        if isinstance(placed, Sharding) and (slot in own or placed != MANUAL)
    }


class _Groups:
    """Slots that are computed with each other, element by element."""

    def __init__(self, graph: Graph) -> None:
        self._specs = graph.specs
        self._group = list(range(len(graph.specs)))
        said: list[tuple[int, Sharding | None]] = [(slot, spec.sharding) for slot, spec in enumerate(graph.inputs)]
        for operation in graph.operations:
            if operation.plan.op in ASKING:
                said.append((operation.first_output, sharding_in(operation.plan)))
            for together in _together(operation):
                self._join(together)
        self._said: dict[int, set[Sharding | None]] = {}
        for slot, sharding in said:
            self._said.setdefault(self._of(slot), set()).add(sharding)

    def sharding_of(self, slot: int) -> Placed:
        """Return the only sharding in the group of a slot; a division takes precedence over copies."""
        said = self._said.get(self._of(slot), set())
        divided = said - {None}
        if len(divided) > 1 or not said:
            return ANY
        return divided.pop() if divided else None

    def _of(self, slot: int) -> int:
        while self._group[slot] != slot:
            self._group[slot] = self._group[self._group[slot]]
            slot = self._group[slot]
        return slot

    def _join(self, slots: list[int]) -> None:
        first: dict[tuple[int, ...], int] = {}
        for slot in slots:
            size = self._specs[slot].size
            if size:
                self._group[self._of(slot)] = self._of(first.setdefault(size, slot))


def _together(operation: Operation) -> Iterator[list[int]]:
    """Yield the operands and results of an operation whose elements meet."""
    plan = operation.plan
    first = operation.first_output
    if is_separable(plan.op) and length_of_lists(plan):
        lists = Lists.of(plan)
        for operands, outputs in zip(lists.operands, lists.outputs, strict=True):
            yield [*(operation.operands[index] for index in operands), *(first + index for index in outputs)]
    elif isinstance(plan.op, OpOverload) and torch.Tag.pointwise in plan.op.tags:
        yield [*operation.operands, *range(first, first + len(plan.outputs))]
