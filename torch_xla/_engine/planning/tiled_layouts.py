"""Count the elements that a TPU stores for an array: whole tiles, even where one is partly filled."""

import functools
import math
import re
from collections.abc import Sequence

_TILE = re.compile(r"\(([\d,*]*)\)")


def padded(dims: Sequence[int], layout: str) -> int:
    """Return the number of elements, padding included, of an array in a layout such as "1,0:T(8,128)(2,1)".

    The first tile divides the minor dimensions, in the order of the layout. Each further tile divides the last
    dimensions of the one before.

    >>> padded((10, 130), "1,0:T(8,128)")
    4096
    >>> padded((), ":T(128)")
    128
    """
    order, _, rest = layout.partition(":")
    minor_to_major = [int(each) for each in order.split(",") if each]
    shape = [dims[place] for place in reversed(minor_to_major)]
    for tile in _tiles(rest):
        missing = len(tile) - len(shape)
        shape = [1] * missing + shape
        outer, inner = shape[: len(shape) - len(tile)], shape[len(shape) - len(tile) :]
        counts = [-(-size // side) for size, side in zip(inner, tile, strict=True)]
        shape = [*outer, *counts, *tile]
    return math.prod(shape)


@functools.lru_cache(256)
def _tiles(text: str) -> tuple[tuple[int, ...], ...]:
    found = re.match(r"T((?:\([\d,*]*\))+)", text)
    if found is None:
        return ()
    return tuple(tuple(int(side) for side in each.split(",") if side.isdigit()) for each in _TILE.findall(found[1]))
