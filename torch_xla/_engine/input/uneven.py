"""Batches that the devices cannot share evenly: counted, and told once."""

import warnings
from collections.abc import Sequence

from .. import metrics

_uneven = metrics.counter("UnevenInput")


def tell(size: Sequence[int], dim: int, parts: int) -> None:
    """Says that dimension `dim` of an input of this size is not divided, so that each device gets all of it."""
    if not _uneven.value:
        warnings.warn(
            f"ShardingSpec: dimension {dim} of an input of shape {list(size)} is not divided evenly by {parts} parts; "
            "each device gets all of it, and the program is compiled once more. drop_last=True, or padding, spares "
            "that.",
            stacklevel=3,
        )
    _uneven.value += 1
