"""Pack many small arrays into one: each array of a program costs the host a microsecond or two per call."""

import math

import jax
import jax.numpy as jnp

from .registry import lowers

PACK = "xla::pack"
UNPACK = "xla::unpack"


@lowers(PACK)
def pack(arrays: list[jax.Array]) -> jax.Array:
    """Return the elements of all arrays, which are of one dtype, one array behind the other."""
    return jnp.concatenate([array.reshape(-1) for array in arrays])


@lowers(UNPACK)
def unpack(flat: jax.Array, sizes: list[list[int]]) -> list[jax.Array]:
    """Return the arrays of these sizes that were packed."""
    arrays, begin = [], 0
    for size in sizes:
        end = begin + math.prod(size)
        arrays.append(jax.lax.slice(flat, (begin,), (end,)).reshape(size))
        begin = end
    return arrays
