"""Embeddings: look rows up, sum rows by bag, and the gradients of the table.

Gradients of narrow floats add up in float32. Indices outside the table, an error on the CPU, read the nearest row and
add nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.jax_sharding import whole_rows
from ..machinery.opmath import widened
from ..machinery.registry import lowers
from ..reductions.distance import norm, shrinking_factor
from .scattering import scatter_elements, scatter_slices
from .search import insertion_points

aten = torch.ops.aten

_SUM, _MEAN, _MAX = range(3)


@lowers(aten.embedding.default)
def embedding(
    weight: jax.Array,
    indices: jax.Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    return jnp.take(weight, whole_rows(indices), 0, mode="clip")


def _frequency_of_each(indices: jax.Array, rows: int) -> jax.Array:
    """Return the number of lookups of each index's row."""
    counts = scatter_slices(jnp.zeros((rows,), np.int32), 0, indices, np.int32(1), "add")
    return jnp.maximum(jnp.take(counts, indices, mode="clip"), 1)


def _summed_by_row(
    grads: jax.Array, indices: jax.Array, rows: int, padding_idx: int, scale_grad_by_freq: bool
) -> jax.Array:
    """Return the gradient of a table from one gradient for each index."""
    if scale_grad_by_freq:
        grads = grads / _frequency_of_each(indices, rows).astype(grads.dtype)[:, None]
    if padding_idx >= 0:
        indices = jnp.where(indices == padding_idx, rows, indices)
    return scatter_slices(jnp.zeros((rows, grads.shape[1]), grads.dtype), 0, indices, grads, "add")


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad_output: jax.Array, indices: jax.Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> jax.Array:
    flat = indices.reshape(-1)
    grads = widened(grad_output).reshape(flat.size, grad_output.shape[-1])
    return _summed_by_row(grads, flat, num_weights, padding_idx, scale_grad_by_freq)


@lowers(aten.embedding_renorm.default)
def embedding_renorm(self: jax.Array, indices: jax.Array, max_norm: object, norm_type: object) -> jax.Array:
    table = widened(self)
    shrunk = table * shrinking_factor(norm(table, norm_type, [1], keepdim=True), max_norm).astype(table.dtype)
    looked_up = scatter_slices(jnp.zeros((self.shape[0],), np.bool_), 0, indices.reshape(-1), True, "set")
    return jnp.where(looked_up[:, None] != 0, shrunk, table)


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    # The second to fourth result serve the backward functions; their shapes are those of devices other than the CPU.
    bags = offsets.shape[0] - include_last_offset
    bag = _bag_of_each(indices, offsets[:bags])
    counted = indices != padding_idx if padding_idx >= 0 else jnp.ones(indices.shape, np.bool_)
    target = jnp.where(counted, bag, bags)
    sizes = scatter_slices(jnp.zeros((bags,), indices.dtype), 0, target, indices.dtype.type(1), "add")
    rows = widened(jnp.take(weight, indices, 0, mode="clip"))
    if per_sample_weights is not None:
        rows = rows * widened(per_sample_weights)[:, None]
    result, winners = _largest(rows, indices, target, bags) if mode == _MAX else (None, jnp.zeros((0,), indices.dtype))
    if result is None:
        result = scatter_slices(jnp.zeros((bags, rows.shape[1]), rows.dtype), 0, target, rows, "add")
    if mode == _MEAN:
        result = result / jnp.maximum(sizes, 1).astype(result.dtype)[:, None]
    return result, bag, jnp.pad(sizes, (0, offsets.shape[0] - bags)), winners


def _bag_of_each(indices: jax.Array, offsets: jax.Array) -> jax.Array:
    """Return the bag that each index is in: the last one that starts at it or before it."""
    return insertion_points(offsets, lax.iota(offsets.dtype, indices.shape[0]), right=True).astype(indices.dtype) - 1


def _largest(rows: jax.Array, indices: jax.Array, target: jax.Array, bags: int) -> tuple[jax.Array, jax.Array]:
    """Return the largest element of each column and bag (0 in an empty bag), and the index whose row it is in."""
    count = indices.shape[0]
    lowest = jnp.full((bags, rows.shape[1]), -np.inf, rows.dtype)
    largest = scatter_slices(lowest, 0, target, rows, "amax")
    if not count or not bags:
        return jnp.zeros_like(largest), jnp.zeros(largest.shape, indices.dtype)
    first = jnp.take(largest, target, 0, mode="clip") == rows
    place = jnp.where(first, lax.broadcasted_iota(indices.dtype, rows.shape, 0), count)
    place = scatter_slices(jnp.full(largest.shape, count, indices.dtype), 0, target, place, "amin")
    filled = place < count
    winners = jnp.where(filled, jnp.take(indices, place, mode="clip"), 0)
    return jnp.where(filled, largest, jnp.zeros_like(largest)), winners


@lowers(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(
    grad: jax.Array,
    indices: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    grad = widened(grad)
    bag_size = bag_size[: grad.shape[0]]
    if mode == _MAX:
        winners = jnp.where(bag_size[:, None] > 0, maximum_indices, num_weights)
        return scatter_elements(jnp.zeros((num_weights, grad.shape[1]), grad.dtype), 0, winners, grad, "add")
    if mode == _MEAN:
        grad = grad / jnp.maximum(bag_size, 1).astype(grad.dtype)[:, None]
    grads = jnp.take(grad, offset2bag, 0, mode="clip")
    if per_sample_weights is not None:
        grads = grads * widened(per_sample_weights)[:, None]
    return _summed_by_row(grads, indices, num_weights, padding_idx, scale_grad_by_freq)


@lowers(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    grad: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    if not offset2bag.size:
        offset2bag = _bag_of_each(indices, offsets)
    return embedding_bag_dense_backward(
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@lowers(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    grad: jax.Array,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    mode: int,
    padding_idx: int = -1,
) -> jax.Array:
    if not offset2bag.size:
        offset2bag = _bag_of_each(indices, offsets)
    grads = jnp.take(widened(grad), offset2bag, 0, mode="clip")
    rows = jnp.take(widened(weight), indices, 0, mode="clip")
    products = jnp.sum(grads * rows, 1, grads.dtype)
    return jnp.where(indices == padding_idx, jnp.zeros_like(products), products) if padding_idx >= 0 else products
