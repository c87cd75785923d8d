"""Start an executable of a whole graph: pass it buffers, the numbers that are arguments, and random keys."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from ..compat.names.jax_starters import Starter
from ..runtime.buffers import KeptVector, put
from ..runtime.device_assignment import Target

# Starts an executable on the buffers of the inputs, the vectors of its float and int numbers and the keys it has.
Start = Callable[
    [Sequence[jax.Array], np.ndarray | None, np.ndarray | None, np.ndarray | None], Iterator[Sequence[jax.Array]]
]


class Ready(NamedTuple):
    """An executable and how it is started."""

    executable: Any
    start: Start
    floats: list[int]  # the numbers in each vector
    ints: list[int]
    on_buffers: Starter | None = None  # starts an executable of a whole graph on all of its arrays


def whole(start: Starter, target: Target) -> Start:
    """Return the function that starts an executable of a whole graph with numbers and random keys."""
    kept_floats, kept_ints = KeptVector(target), KeptVector(target)

    def begin(
        buffers: Sequence[jax.Array], floats: np.ndarray | None, ints: np.ndarray | None, keys: np.ndarray | None
    ) -> Iterator[Sequence[jax.Array]]:
        own: list[jax.Array] = []
        if floats is not None:
            own.append(kept_floats.put(floats))
        if ints is not None:
            own.append(kept_ints.put(ints))
        if keys is not None:
            own.append(put(keys, target))
        return start(([*buffers, *own] if own else buffers,))

    return begin


def without(packed: bytes, arguments: tuple[int, ...]) -> bytes:
    """Return packed numbers with zeros for the arguments."""
    if not arguments:
        return packed
    size = len(packed)
    return (int.from_bytes(packed, "little") & _others(size, arguments)).to_bytes(size, "little")


@lru_cache(maxsize=256)
def _others(size: int, arguments: tuple[int, ...]) -> int:
    """Return an integer whose bits are those of all numbers but the arguments."""
    kept = bytearray(b"\xff" * size)
    for index in arguments:
        kept[8 * index : 8 * index + 8] = bytes(8)
    return int.from_bytes(kept, "little")
