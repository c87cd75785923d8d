"""Start an executable of a whole graph: pass it buffers, the numbers that are arguments, and random keys."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..runtime.buffers import KeptVector, put
from ..runtime.device_assignment import Target
from . import shard_mapped

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


def whole(executable: Any, target: Target) -> Start:
    """Return the function that starts an executable of a whole graph."""
    start = shard_mapped.starter(target, executable)
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
