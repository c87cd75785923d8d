"""Cut an optimizer's step into equal chunks: each has as many tensors of each size, so one is compiled.

XLA makes kernels of its own for each tensor of a list, though two of one size are computed in the same way: of the
first step of six layers of GPT-2 that is most of the time. Each is computed alone, so their order is free: what is left
over of a size, when all rounds have as many, goes with the operations before, and costs no start.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

from ...ir.graph import Graph
from .partitioner import OnLists, Piece, lists_in, with_reads, without_reads

# Elements that are not compiled, below which rounds are not worth the cuts around them.
LEAST_SPARED = 16
# This share of the possible savings is enough if it takes fewer rounds, because each round has to be started.
ENOUGH = 0.9
# More rounds would save little, and XLA's CPU client starts only 32 executables ahead of the device.
MOST_ROUNDS = 8


def in_rounds(graph: Graph, most_stages: float, least_bytes: int) -> list[list[Piece]]:
    """Return the pieces of each stage of `graph`: before its largest list operations, rounds of these, and after them.

    Each round reads and writes `least_bytes` or more. Return an empty list if the stages would be too many, or if
    rounds do not pay.
    """
    pieces, reads = without_reads(graph)
    found: list[tuple[int, int, OnLists]] = []
    for on_lists in lists_in(pieces):
        read = _read(pieces[on_lists.first : on_lists.last])
        # Each array that goes from one stage to the next costs the host. A packed state would be apart in all of them.
        if 3 * sum(slot < len(graph.inputs) for slot in read) < len(read):
            continue
        most = 2 * sum(graph.specs[slot].numel * int(graph.specs[slot].dtype.itemsize) for slot in read) // least_bytes
        spared, rounds = _rounds(on_lists.kinds, int(min(most, MOST_ROUNDS, most_stages - 2)))
        if spared >= LEAST_SPARED:
            found.append((spared * len(on_lists.lists), rounds, on_lists))
    if not found or len(pieces) == 1:
        return []
    _, rounds, largest = max(found, key=lambda each: each[0])
    parts = largest.cut(pieces, _divided(largest.kinds, rounds))
    if not parts:
        return []
    before, after = [*pieces[: largest.first], *parts[0]], pieces[largest.last :]
    return [with_reads(stage, reads) for stage in (before, *parts[1:], after) if stage]


def _read(pieces: Sequence[Piece]) -> set[int]:
    """Return the slots that pieces read from earlier pieces, or from outside."""
    made = {slot for piece in pieces for slot in piece.outputs}
    return {slot for piece in pieces for slot in piece.operands} - made


def _rounds(kinds: Sequence[Hashable], most: int) -> tuple[int, int]:
    """Return the largest number of elements to save, and the fewest rounds that save nearly as many."""
    counts = Counter(kinds).values()
    spared = {rounds: sum(count // rounds * (rounds - 1) for count in counts) for rounds in range(2, most + 1)}
    largest = max(spared.values(), default=0)
    return next(((count, rounds) for rounds, count in spared.items() if count >= ENOUGH * largest > 0), (0, 0))


def _divided(kinds: Sequence[Hashable], rounds: int) -> list[list[int]]:
    """Return the left-over elements, then those of each round. All rounds have equal kinds in the same order."""
    places: dict[Hashable, list[int]] = {}
    for element, kind in enumerate(kinds):
        places.setdefault(kind, []).append(element)
    found: list[list[int]] = [[] for _ in range(rounds + 1)]
    for elements in places.values():
        each = len(elements) // rounds
        for at in range(rounds):
            found[at + 1] += elements[at * each : (at + 1) * each]
        found[0] += elements[rounds * each :]
    return found
