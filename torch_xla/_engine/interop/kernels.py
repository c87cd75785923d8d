"""Kernels by name as functions of arrays: attention, attention to pages, products of groups.

JAX brings kernels for TPUs. Here are forms that every platform compiles well, with the same arguments and numbers.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pallas_tpu

# What is added to a score that does not count, as JAX's kernels do it.
MASK_VALUE = -0.7 * float(np.finfo(np.float32).max)

# So many rows of scores are there at a time: more would be slower to write than to compute again.
_ROWS = 512


def interpreted(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, a function that calls Pallas, as a function that any platform runs, slowly."""

    def run(*arrays: Any) -> Any:
        with pallas_tpu.force_tpu_interpret_mode():
            return kernel(*arrays)

    return run


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: jax.Array | None,
    q_segments: jax.Array | None,
    kv_segments: jax.Array | None,
    causal: bool,
    scale: float,
) -> jax.Array:
    """softmax((q kᵀ + ab) · scale) v over sizes [batch, heads, length, width], block by block of the queries."""

    @jax.checkpoint
    def rows(start: jax.Array, block: jax.Array, bias: jax.Array | None, segments: jax.Array | None) -> jax.Array:
        scores = jnp.einsum("bhqc,bhkc->bhqk", block, k, preferred_element_type=np.float32)
        scores = (scores if bias is None else scores + bias) * scale
        allowed = None if segments is None else (segments[:, None, :, None] == kv_segments[:, None, None, :])  # type: ignore[index]
        if causal:
            row = start + lax.broadcasted_iota(np.int32, scores.shape[2:], 0)
            below = (lax.broadcasted_iota(np.int32, scores.shape[2:], 1) <= row)[None, None]
            allowed = below if allowed is None else allowed & below
        if allowed is not None:
            scores = scores + jnp.where(allowed, 0.0, MASK_VALUE)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        return jnp.einsum("bhqk,bhkc->bhqc", weights, v)

    length = q.shape[2]
    count = max(1, math.ceil(length / _ROWS))
    if length % count:
        count = 1
    if count == 1:
        return rows(jnp.zeros((), np.int32), q, ab, q_segments).astype(q.dtype)
    size = length // count

    def cut(array: jax.Array | None, axis: int) -> jax.Array | None:
        if array is None:
            return None
        split = (*array.shape[:axis], count, size, *array.shape[axis + 1 :])
        return jnp.moveaxis(array.reshape(split), axis, 0)

    def once(start: jax.Array, block: Any) -> Any:
        return start + size, rows(start, *block)

    _, found = lax.scan(once, jnp.zeros((), np.int32), (cut(q, 2), cut(ab, 2), cut(q_segments, 1)))
    return jnp.moveaxis(found, 0, 2).reshape(*q.shape[:3], v.shape[3]).astype(q.dtype)


def paged_attention(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    soft_cap: float | None,
) -> jax.Array:
    """One query of each sequence attends to the keys on its pages.

    Sizes: q [batch, heads, width], pages [key heads, pages, page size, width], lengths [batch], indices [batch, pages].
    """
    batch, heads, width = q.shape
    key_heads = k_pages.shape[0]
    keys, values = (_of_sequences(pages, page_indices) for pages in (k_pages, v_pages))
    grouped = q.reshape(batch, key_heads, heads // key_heads, width)
    scores = jnp.einsum("bhgd,bhkd->bhgk", grouped, keys, preferred_element_type=np.float32)
    if soft_cap is not None:
        scores = jnp.tanh(scores / soft_cap) * soft_cap
    counts = jnp.arange(scores.shape[-1]) < lengths[:, None]
    weights = jax.nn.softmax(scores + jnp.where(counts[:, None, None, :], 0.0, MASK_VALUE), axis=-1)
    return jnp.einsum("bhgk,bhkd->bhgd", weights.astype(values.dtype), values).reshape(q.shape).astype(q.dtype)


def _of_sequences(pages: jax.Array, indices: jax.Array) -> jax.Array:
    """The pages of each sequence one after the other: [batch, key heads, keys, width]."""
    taken = jnp.moveaxis(pages[:, indices], 0, 1)
    return taken.reshape(*taken.shape[:2], -1, taken.shape[-1])


def grouped_product(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, transpose_rhs: bool) -> jax.Array:
    """Rows of `lhs` [m, k] times the matrix of their group in `rhs` [groups, k, n]; rows of no group give zeros."""
    if transpose_rhs:
        rhs = jnp.swapaxes(rhs, 1, 2)
    return lax.ragged_dot(lhs, rhs, group_sizes.astype(np.int32))


def grouped_outer_product(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """The products of the columns of `lhs` [k, m] with the rows of `rhs` [m, n], summed by group: [groups, k, n]."""
    ends = jnp.cumsum(group_sizes)
    group = jnp.searchsorted(ends, jnp.arange(rhs.shape[0]), side="right")

    def once(_: None, number: jax.Array) -> Any:
        own = jnp.where((group == number)[:, None], rhs, jnp.zeros((), rhs.dtype))
        return None, lhs @ own

    return lax.scan(once, None, jnp.arange(group_sizes.shape[0]))[1]
