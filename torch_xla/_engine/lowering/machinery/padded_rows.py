"""Operations on capacity-padded sequences: the length is an argument, so one program serves all lengths."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .registry import lowers

APPEND = "xla::append"
TAKE = "xla::take_of_grown"
PAD = "xla::pad_grown"
ENLARGE = "xla::enlarge"

# Their number differs from step to step by what they are for.
COUNTING = frozenset((APPEND, TAKE, PAD))


@lowers(ENLARGE)
def enlarge(value: jax.Array, capacity: int) -> jax.Array:
    """The value with room behind it, along the last dimension."""
    return jnp.pad(value, [(0, 0)] * (value.ndim - 1) + [(0, capacity - value.shape[-1])])


@lowers(APPEND)
def append(room: jax.Array, last: jax.Array, length: Any) -> jax.Array:
    """The room with `last` behind its first `length` elements of the last dimension."""
    return lax.dynamic_update_slice_in_dim(room, last, jnp.asarray(length, np.int32), -1)


@lowers(TAKE)
def take(room: jax.Array, start: Any, width: int, size: Sequence[int]) -> jax.Array:
    """`width` elements of the last dimension from `start` on, as an array of `size`."""
    return lax.dynamic_slice_in_dim(room, jnp.asarray(start, np.int32), width, -1).reshape(tuple(size))


@lowers(PAD)
def pad(room: jax.Array, length: Any, width: int, fill: Any) -> jax.Array:
    """The first `length` elements of the last dimension, then `fill` up to `width`."""
    room = enlarge(room, width) if room.shape[-1] < width else lax.slice_in_dim(room, 0, width, axis=-1)
    place = lax.broadcasted_iota(np.int32, room.shape, room.ndim - 1)
    return jnp.where(place < jnp.asarray(length, np.int32), room, jnp.asarray(fill, room.dtype))
