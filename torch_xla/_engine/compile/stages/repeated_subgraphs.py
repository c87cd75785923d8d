"""Find tandem repeats: stretches of a sequence in which the same elements follow each other again and again.

Elements are opaque. Pieces of 1, 2, 4, 8 … elements are named, equal pieces alike. Where a period of `p` elements
repeats, a piece of at least `p` elements occurs again exactly `p` later; the distances of equal pieces give the
candidates for `p`. That takes n log n steps for n elements, and one pass for each period tried.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

# A period must come so often before anybody speaks of a repeat.
FEWEST = 3
# How many of the most frequent distances are tried as periods.
_TRIED = 32
# How many of the longest repeats are looked at; a program of layers has a few.
_LOOKED_AT = 256


class Repeat(NamedTuple):
    """`length` elements from `start` on, each equal to the one `period` before it, as far as that is inside."""

    start: int
    period: int
    length: int

    @property
    def end(self) -> int:
        """The first element behind it."""
        return self.start + self.length


def find(elements: Sequence[Hashable], spared: int = 1) -> list[Repeat]:
    """Return repeats of a sequence that do not overlap, in order, preferring the largest savings.

    Each saves at least `spared` elements.

    >>> find("xabcabcabcay")
    [Repeat(start=1, period=3, length=10)]
    """
    names = _named(elements)
    found: list[Repeat] = []
    for period in _periods(names):
        found += [repeat for repeat in _stretches(names, period) if repeat.length - period >= spared]
    # Among equal savings prefer the shortest period.
    found.sort(key=lambda repeat: (repeat.period - repeat.length, repeat.period, repeat.start))
    chosen: list[Repeat] = []
    for repeat in found[:_LOOKED_AT]:
        for free in _outside(repeat, chosen):
            if free.length >= max(FEWEST * free.period, spared + free.period):
                chosen.append(free)
    return sorted(chosen)


def _named(elements: Sequence[Hashable]) -> np.ndarray:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(element, len(numbers)) for element in elements], dtype=np.int64)


def _periods(names: np.ndarray) -> list[int]:
    """Return the distances at which pieces of a sequence come again, the most frequent first."""
    counts: Counter[int] = Counter()
    pieces, width = names, 1
    while len(pieces) > 1 and width <= len(names) // 2:
        order = np.argsort(pieces, kind="stable")
        same = pieces[order][1:] == pieces[order][:-1]
        distances, frequent = np.unique(np.diff(order)[same], return_counts=True)
        for distance, count in zip(distances.tolist(), frequent.tolist(), strict=True):
            if width // 2 < distance <= width:  # other widths overcount or miss this distance
                counts[distance] += count
        if len(pieces) <= width:
            break
        joined = pieces[:-width] * (int(pieces.max()) + 1) + pieces[width:]
        pieces, width = np.unique(joined, return_inverse=True)[1], 2 * width
    return [period for period, _ in counts.most_common(_TRIED)]


def _stretches(names: np.ndarray, period: int) -> list[Repeat]:
    equal = np.concatenate(([False], names[:-period] == names[period:], [False]))
    edges = np.flatnonzero(equal[1:] != equal[:-1]).tolist()
    return [
        Repeat(start, period, end - start + period)
        for start, end in zip(edges[::2], edges[1::2], strict=True)
        if end - start >= (FEWEST - 1) * period
    ]


def _outside(repeat: Repeat, chosen: Sequence[Repeat]) -> list[Repeat]:
    """Return the rest of a repeat outside of the chosen ones."""
    free = [repeat]
    for other in chosen:
        free = [
            Repeat(start, repeat.period, end - start)
            for each in free
            for start, end in ((each.start, min(each.end, other.start)), (max(each.start, other.end), each.end))
            if end > start
        ]
    return free
