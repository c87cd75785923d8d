"""Operations on capacity-padded sequences: the length is an argument, so one program serves all lengths."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .registry import lowers

APPEND = "xla::append"
TAKE = "xla::take_of_grown"
PAD = "xla::pad_grown"
ENLARGE = "xla::enlarge"
CUT = "xla::cut_from_room"
IS_VALID = "xla::is_valid_of_grown"

# Their number differs from step to step by what they are for.
COUNTING = frozenset((APPEND, TAKE, PAD, IS_VALID))


@lowers(ENLARGE)
def enlarge(value: jax.Array, capacity: int, dim: int = -1) -> jax.Array:
    """Return the value with room behind it, along a dimension that is counted from the last."""
    widths = [(0, 0)] * value.ndim
    widths[dim] = (0, capacity - value.shape[dim])
    return jnp.pad(value, widths)


@lowers(CUT)
def cut(room: jax.Array, size: Sequence[int]) -> jax.Array:
    """Return the first elements of each dimension."""
    return lax.slice(room, (0,) * room.ndim, tuple(size))


@lowers(APPEND)
def append(room: jax.Array, last: jax.Array, length: jax.Array, dim: int = -1) -> jax.Array:
    """Return the room with `last` behind its first `length` elements along `dim`."""
    return lax.dynamic_update_slice_in_dim(room, last, jnp.asarray(length, np.int32), dim)


@lowers(TAKE)
def take(room: jax.Array, start: object, width: int, size: Sequence[int]) -> jax.Array:
    """Return `width` elements of the last dimension from `start` on, as an array of `size`."""
    return lax.dynamic_slice_in_dim(room, jnp.asarray(start, np.int32), width, -1).reshape(tuple(size))


@lowers(PAD)
def pad(room: jax.Array, length: object, width: int, fill: object, dim: int = -1) -> jax.Array:
    """Return the first `length` elements along `dim`, then `fill` up to `width`."""
    room = enlarge(room, width, dim) if room.shape[dim] < width else lax.slice_in_dim(room, 0, width, axis=dim)
    place = lax.broadcasted_iota(np.int32, room.shape, room.ndim + dim)
    return jnp.where(place < jnp.asarray(length, np.int32), room, jnp.asarray(fill, room.dtype))


@lowers(IS_VALID)
def is_valid(room: jax.Array, length: object, dim: int) -> jax.Array:
    """Return for each place of the room along `dim` whether it is one of the first `length`: a row for a mask of
    scores.
    """
    place = lax.broadcasted_iota(np.int32, (1,) * (room.ndim - 1) + (room.shape[dim],), room.ndim - 1)
    return place < jnp.asarray(length, np.int32)
