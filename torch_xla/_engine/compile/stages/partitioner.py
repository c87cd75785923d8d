"""Partition the operations of a graph into consecutive pieces, and join the pieces of each stage.

An operation is one piece. Those on lists of tensors (an optimizer's step for all parameters) are cut along their lists,
where each element is computed alone, if the elements repeat: first all operations on the tensors of one layer, then
those on the tensors of the next. So a layer's share of such a step is found again at the next layer.

Gradients of layers that ran as a loop are slices of stacks. Views that such operations alone read are read in the stage
that needs them: where they begin is a number, so that the reads are the same for each layer, too.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ...ir.call_plan import Plan
from ...ir.graph import Graph
from ...lowering.views.storage_access import READ
from . import repeated_subgraphs
from .list_ops import Lists, length_of_lists

# A repeat that saves fewer operations is not worth the cuts around it.
LEAST_SPARED = 16
# Nor is a repeat that saves less than this fraction of the largest one's savings.
SMALLEST_SHARE = 8


class Piece(NamedTuple):
    """An operation, or a part of one. Slots and numbers are those of the graph."""

    plan: Plan
    operands: tuple[int, ...]
    numbers: tuple[int, ...]
    draw: int  # the first of its random keys; -1: it takes none
    outputs: tuple[int, ...]
    operation: int  # the index of its operation in the graph


class OnLists(NamedTuple):
    """Operations on lists that follow each other, and what the elements of their lists have in common."""

    first: int
    last: int  # the one behind the last operation
    lists: list[Lists]
    kinds: list[Hashable]  # of each element; equal ones are computed in the same way

    def cut(self, pieces: Sequence[Piece], parts: Sequence[Sequence[int]]) -> list[list[Piece]]:
        """Return its pieces for the elements of each of `parts`, one after the other; none if they need each other."""
        found = [
            [
                _part(piece, lists, elements)
                for piece, lists in zip(pieces[self.first : self.last], self.lists, strict=True)
                if elements
            ]
            for elements in parts
        ]
        later = {slot for part in found for piece in part for slot in piece.outputs}
        for part in found:
            for piece in part:
                if not later.isdisjoint(piece.operands):
                    return []
                later.difference_update(piece.outputs)
        return found


def in_stages(graph: Graph, most_stages: int) -> list[list[Piece]]:
    """Return the pieces of each stage of `graph`, cut where it repeats, into about `most_stages`; one if it does
    not.
    """
    pieces, reads = without_reads(graph)
    return [with_reads(stage, reads) for stage in _cut_where_it_repeats(pieces, most_stages)]


def without_reads(graph: Graph) -> tuple[list[Piece], dict[int, Piece]]:
    """Return pieces without view reads that only list operations use; these are returned by the slot they fill."""
    pieces = list(_whole(graph))
    wanted = set(graph.outputs)
    made: set[int] = set()  # what is cut along lists itself: no part may read what another makes
    for piece in pieces:
        if length_of_lists(piece.plan):
            made.update(piece.outputs)
        else:
            wanted.update(piece.operands)
    rest: list[Piece] = []
    reads: dict[int, Piece] = {}
    for piece in pieces:
        if piece.plan.op == READ and wanted.isdisjoint(piece.outputs) and made.isdisjoint(piece.operands):
            reads[piece.outputs[0]] = piece
        else:
            rest.append(piece)
    return rest, reads


def with_reads(stage: Sequence[Piece], reads: Mapping[int, Piece]) -> list[Piece]:
    """Return a stage with each view read in front of its reader."""
    found: dict[Piece, None] = {}
    for piece in stage:
        found.update(dict.fromkeys(reads[slot] for slot in piece.operands if slot in reads))
        found[piece] = None
    return list(found)


def _cut_where_it_repeats(pieces: list[Piece], most_stages: int) -> list[list[Piece]]:
    on_lists = [(region, repeated_subgraphs.find(region.kinds, LEAST_SPARED)) for region in lists_in(pieces)]
    on_lists = [each for each in on_lists if each[1]]
    tokens: list[Hashable] = [piece.plan for piece in pieces]
    for region, _ in on_lists:
        tokens[region.first : region.last] = [object() for _ in range(region.first, region.last)]
    found = repeated_subgraphs.find(tokens, LEAST_SPARED)
    found, on_lists = _worth_it(found, on_lists)
    ways = len(found) + sum(len(repeated) for _, repeated in on_lists)
    most = (most_stages - ways - 1) // ways if ways else 0
    if most < repeated_subgraphs.FEWEST:
        return [pieces]
    edges = {0, len(pieces)}
    for repeat in found:
        edges.update(_edges(repeat, most, _phase(repeat, pieces)))
    parts = {
        region.first: parts for region, repeated in on_lists if (parts := _in_layers(pieces, region, repeated, most))
    }
    for region, _ in on_lists:
        if region.first in parts:
            edges.update((region.first, region.last))
    ordered = sorted(edges)
    stages: list[list[Piece]] = []
    for start, end in zip(ordered, ordered[1:], strict=False):
        stages += parts.get(start) or [pieces[start:end]]
    return stages


def _worth_it(
    found: list[repeated_subgraphs.Repeat], on_lists: list[tuple[OnLists, list[repeated_subgraphs.Repeat]]]
) -> tuple[list[repeated_subgraphs.Repeat], list[tuple[OnLists, list[repeated_subgraphs.Repeat]]]]:
    """Drop repeats that save little beside the largest: the number of stages is limited."""
    spared = [repeat.length - repeat.period for repeat in found]
    # An element of a list is a small operation.
    by_lists = [
        sum(repeat.length - repeat.period for repeat in repeated) * len(region.lists) // 4
        for region, repeated in on_lists
    ]
    least = max([*spared, *by_lists], default=0) // SMALLEST_SHARE
    return (
        [repeat for repeat, count in zip(found, spared, strict=True) if count >= least],
        [each for each, count in zip(on_lists, by_lists, strict=True) if count >= least],
    )


def _whole(graph: Graph) -> Iterator[Piece]:
    for index, operation in enumerate(graph.operations):
        plan = operation.plan
        numbers = range(operation.first_number, operation.first_number + len(plan.numbers))
        outputs = range(operation.first_output, operation.first_output + len(plan.outputs))
        yield Piece(plan, operation.operands, tuple(numbers), operation.draw, tuple(outputs), index)


def _edges(repeat: repeated_subgraphs.Repeat, most: int, phase: int = 0) -> range:
    """Return the cuts of a repeat into at most `most` equal stages with the smallest rest."""
    count = (repeat.length - phase) // repeat.period
    least = -(-count // most)
    each = min(range(least, 2 * least + 1), key=lambda periods: (periods + count % periods, -periods))
    start, step = repeat.start + phase, each * repeat.period
    return range(start, start + count // each * step + 1, step)


def _phase(repeat: repeated_subgraphs.Repeat, pieces: Sequence[Piece]) -> int:
    """Return the position in its period at which to cut a repeat: where the fewest bytes cross."""
    period = repeat.period
    start = repeat.start + (repeat.length // period - 1) // 2 * period
    made = {slot: at for at in range(start, start + period) for slot in pieces[at].outputs}
    last: dict[int, int] = {}
    for at in range(start, min(start + 2 * period, repeat.end)):
        for slot in pieces[at].operands:
            if slot in made and at - made[slot] < period:
                last[slot] = at
    crossing = [0] * period
    for slot, at in last.items():
        plan = pieces[made[slot]].plan
        spec = plan.outputs[slot - pieces[made[slot]].outputs[0]]
        for edge in range(made[slot] + 1, at + 1):
            crossing[(edge - repeat.start) % period] += 1 + spec.numel * spec.dtype.itemsize
    # Of equal places the first that leaves as many periods whole.
    rest = repeat.length % period
    return min(range(period), key=lambda phase: (crossing[phase], phase > rest, phase))


def lists_in(pieces: Sequence[Piece]) -> Iterator[OnLists]:
    """Return the ranges of consecutive operations on lists of one length."""
    first = 0
    while first < len(pieces):
        length = length_of_lists(pieces[first].plan)
        last = first + 1
        if length:
            while last < len(pieces) and length_of_lists(pieces[last].plan) == length:
                last += 1
            lists = [Lists.of(piece.plan) for piece in pieces[first:last]]
            yield OnLists(first, last, lists, [tuple(each.kind_of(at) for each in lists) for at in range(length)])
        first = last


def _in_layers(
    pieces: Sequence[Piece], region: OnLists, found: Sequence[repeated_subgraphs.Repeat], most: int
) -> list[list[Piece]]:
    edges = {0, len(region.kinds)}
    for repeat in found:
        edges.update(_edges(repeat, most))
    ordered = sorted(edges)
    return region.cut(pieces, [range(start, end) for start, end in zip(ordered, ordered[1:], strict=False)])


def _part(piece: Piece, lists: Lists, elements: Sequence[int]) -> Piece:
    plan, operands, numbers, outputs = lists.part(elements)
    return Piece(
        plan,
        tuple(piece.operands[index] for index in operands),
        tuple(piece.numbers[index] for index in numbers),
        piece.draw,
        tuple(piece.outputs[index] for index in outputs),
        piece.operation,
    )
