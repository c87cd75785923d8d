"""Start an executable of a whole graph: pass it buffers, the numbers that are arguments, and random keys."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..compat.names.jax import Starter
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


def without(packed: bytes, arguments: Sequence[int]) -> bytes:
    """Return packed numbers with zeros for the arguments."""
    if not arguments:
        return packed
    kept = bytearray(packed)
    for index in arguments:
        kept[8 * index : 8 * index + 8] = b"\0" * 8
    return bytes(kept)
