"""The operations of a graph as pieces that run one after the other, put together to the pieces of each stage.

An operation is one piece. Those on lists of tensors (an optimizer's step for all parameters) are cut along their lists,
where each element is computed alone, if the elements repeat: first all operations on the tensors of one layer, then
those on the tensors of the next. So a layer's share of such a step is found again at the next layer.

Gradients of layers that ran as a loop are slices of stacks. Views that such operations alone read are read in the stage
that needs them: where they begin is a number, so that the reads are the same for each layer, too.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..graph.graph import Graph
from ..graph.plan import Plan
from ..lowering.storage import READ
from . import repeats
from .lists import Lists, length_of_lists

# A repeat that stands for fewer operations is not worth the cuts around it.
LEAST_SPARED = 16
# Nor one that stands for less than this part of what the largest stands for.
SMALLEST_SHARE = 8


class Piece(NamedTuple):
    """An operation, or a part of one. Slots and numbers are those of the graph."""

    plan: Plan
    operands: tuple[int, ...]
    numbers: tuple[int, ...]
    draw: int  # the first of its random keys; -1: it takes none
    outputs: tuple[int, ...]
    operation: int  # the index in the graph of what it is, or is a part of


class _Region(NamedTuple):
    """Operations on lists that follow each other, and how the elements of their lists repeat."""

    first: int
    last: int  # the one behind the last operation
    lists: list[Lists]
    length: int
    repeats: list[repeats.Repeat]


def in_stages(graph: Graph, most_stages: int) -> list[list[Piece]]:
    """The pieces of each stage of `graph`, cut where it repeats, into about `most_stages`; one if it does not."""
    pieces, reads = _without_reads(graph, list(_whole(graph)))
    return [_with_reads(stage, reads) for stage in _cut_where_it_repeats(pieces, most_stages)]


def _without_reads(graph: Graph, pieces: list[Piece]) -> tuple[list[Piece], dict[int, Piece]]:
    """Without those that read a view for operations on lists alone, which come by the slot they fill."""
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


def _with_reads(stage: Sequence[Piece], reads: Mapping[int, Piece]) -> list[Piece]:
    found: dict[Piece, None] = {}
    for piece in stage:
        found.update(dict.fromkeys(reads[slot] for slot in piece.operands if slot in reads))
        found[piece] = None
    return list(found)


def _cut_where_it_repeats(pieces: list[Piece], most_stages: int) -> list[list[Piece]]:
    regions = [region for region in _regions(pieces) if region.repeats]
    tokens: list[Hashable] = [piece.plan for piece in pieces]
    for region in regions:
        tokens[region.first : region.last] = [object() for _ in range(region.first, region.last)]
    found = repeats.find(tokens, LEAST_SPARED)
    found, regions = _worth_it(found, regions)
    ways = len(found) + sum(len(region.repeats) for region in regions)
    most = (most_stages - ways - 1) // ways if ways else 0
    if most < repeats.FEWEST:
        return [pieces]
    edges = {0, len(pieces)}
    for repeat in found:
        edges.update(_edges(repeat, most, _phase(repeat, pieces)))
    parts = {region.first: parts for region in regions if (parts := _cut(pieces, region, most))}
    for region in regions:
        if region.first in parts:
            edges.update((region.first, region.last))
    ordered = sorted(edges)
    stages: list[list[Piece]] = []
    for start, end in zip(ordered, ordered[1:], strict=False):
        stages += parts.get(start) or [pieces[start:end]]
    return stages


def _worth_it(found: list[repeats.Repeat], regions: list[_Region]) -> tuple[list[repeats.Repeat], list[_Region]]:
    """Without those that stand for little beside the largest: there are so many stages to share among them."""
    spared = [repeat.length - repeat.period for repeat in found]
    # An element of a list is a small operation.
    by_lists = [
        sum(repeat.length - repeat.period for repeat in region.repeats) * len(region.lists) // 4 for region in regions
    ]
    least = max([*spared, *by_lists], default=0) // SMALLEST_SHARE
    return (
        [repeat for repeat, count in zip(found, spared, strict=True) if count >= least],
        [region for region, count in zip(regions, by_lists, strict=True) if count >= least],
    )


def _whole(graph: Graph) -> Iterator[Piece]:
    for index, operation in enumerate(graph.operations):
        plan = operation.plan
        numbers = range(operation.first_number, operation.first_number + len(plan.numbers))
        outputs = range(operation.first_output, operation.first_output + len(plan.outputs))
        yield Piece(plan, operation.operands, tuple(numbers), operation.draw, tuple(outputs), index)


def _edges(repeat: repeats.Repeat, most: int, phase: int = 0) -> range:
    """Where a repeat is cut: into at most `most` equal stages, so that as little as possible is left over."""
    count = (repeat.length - phase) // repeat.period
    least = -(-count // most)
    each = min(range(least, 2 * least + 1), key=lambda periods: (periods + count % periods, -periods))
    start, step = repeat.start + phase, each * repeat.period
    return range(start, start + count // each * step + 1, step)


def _phase(repeat: repeats.Repeat, pieces: Sequence[Piece]) -> int:
    """Where in its period a repeat is cut: where least goes from one period to the next, counted in bytes."""
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


def _regions(pieces: Sequence[Piece]) -> Iterator[_Region]:
    first = 0
    while first < len(pieces):
        length = length_of_lists(pieces[first].plan)
        last = first + 1
        if length:
            while last < len(pieces) and length_of_lists(pieces[last].plan) == length:
                last += 1
            lists = [Lists.of(piece.plan) for piece in pieces[first:last]]
            kinds = [tuple(each.kind_of(element) for each in lists) for element in range(length)]
            yield _Region(first, last, lists, length, repeats.find(kinds, LEAST_SPARED))
        first = last


def _cut(pieces: Sequence[Piece], region: _Region, most: int) -> list[list[Piece]]:
    """The pieces of a region for some of the elements after those for others; nothing if they need each other."""
    edges = {0, region.length}
    for repeat in region.repeats:
        edges.update(_edges(repeat, most))
    ordered = sorted(edges)
    parts = [
        [
            _part(piece, lists, range(start, end))
            for piece, lists in zip(pieces[region.first : region.last], region.lists, strict=True)
        ]
        for start, end in zip(ordered, ordered[1:], strict=False)
    ]
    later = {slot for part in parts for piece in part for slot in piece.outputs}
    for part in parts:
        for piece in part:
            if not later.isdisjoint(piece.operands):
                return []
            later.difference_update(piece.outputs)
    return parts


def _part(piece: Piece, lists: Lists, elements: range) -> Piece:
    plan, operands, numbers, outputs = lists.part(elements)
    return Piece(
        plan,
        tuple(piece.operands[index] for index in operands),
        tuple(piece.numbers[index] for index in numbers),
        piece.draw,
        tuple(piece.outputs[index] for index in outputs),
        piece.operation,
    )
