"""Search values: insertion points into sorted sequences, histograms, membership, indices of nonzero elements."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.jax_sharding import zero_behind_ends
from ..machinery.opmath import number_as, widened
from ..machinery.registry import Promotion, lowers
from .sorting import index_dtype

aten = torch.ops.aten

# Up to this many candidates, comparing with each of them beats a search.
_FEW = 64


def _comparable(array: jax.Array) -> jax.Array:
    """Return numbers of float8 as float32: JAX promotes float8 to no other dtype."""
    return (
        array.astype(np.float32) if array.dtype.itemsize == 1 and jnp.issubdtype(array.dtype, jnp.floating) else array
    )


def insertion_points(sequence: jax.Array, values: object, right: bool) -> jax.Array:
    """Return the positions of `values` in `sequence`, sorted along its last dimension, else of the shape of `values`.

    The halving is PyTorch's, so that the answers agree where there are NaNs too.
    """
    size = sequence.shape[-1]
    sequence, values = _comparable(sequence), _comparable(jnp.asarray(values))

    def halve(_: object, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        if sequence.ndim == 1:
            element = jnp.take(sequence, middle, mode="clip")
        else:
            element = jnp.take_along_axis(sequence, middle, -1, mode="clip")
        after = ~(element > values) if right else ~(element >= values)
        searching = low < high
        return jnp.where(searching & after, middle + 1, low), jnp.where(searching & ~after, middle, high)

    dtype = index_dtype(size)
    if jax.export.is_symbolic_dim(size):
        bounds = (jnp.zeros(values.shape, dtype), jnp.broadcast_to(jnp.asarray(size, dtype), values.shape))
        return lax.while_loop(lambda now: jnp.any(now[0] < now[1]), lambda now: halve(None, now), bounds)[0]
    bounds = (jnp.zeros(values.shape, dtype), jnp.full(values.shape, size, dtype))
    return lax.fori_loop(0, size.bit_length(), halve, bounds)[0] if size else bounds[0]


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    sorted_sequence: jax.Array,
    self: jax.Array | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    if sorter is not None:
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, -1, mode="clip")
    points = insertion_points(sorted_sequence, self, right or side == "right")
    return points.astype(np.int32 if out_int32 else np.int64)


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    self: jax.Array | float, boundaries: jax.Array, *, out_int32: bool = False, right: bool = False
) -> jax.Array:
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


@lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: jax.Array, *, output_size: int | None = None) -> jax.Array:
    if output_size is None:
        raise NotImplementedError("repeat_interleave needs output_size: otherwise the values decide the result's shape")
    ends = lax.cumsum(repeats.astype(np.int64))
    return insertion_points(ends, lax.iota(np.int64, output_size), right=True)


def _isin(elements: jax.Array, test_elements: jax.Array, invert: bool) -> jax.Array:
    tests = test_elements.reshape(-1)
    if not jax.export.is_symbolic_dim(tests.size) and tests.size <= _FEW:
        found = jnp.any(elements[..., None] == tests, -1)
    else:
        tests = lax.sort(tests)
        found = jnp.take(tests, insertion_points(tests, elements, right=False), mode="clip") == elements
    return ~found if invert else found


@lowers(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor, promotion=Promotion.COMMON)
def isin(*operands: Any, assume_unique: bool = False, invert: bool = False, **named: Any) -> jax.Array:
    # A number is converted to a tensor without dimensions, in the dtype of the other operand.
    elements, tests = (*operands, *named.values())
    dtype = (elements if isinstance(elements, jax.Array) and not elements.weak_type else tests).dtype
    elements, tests = (
        operand if isinstance(operand, jax.Array) else jnp.asarray(number_as(operand, dtype))
        for operand in (elements, tests)
    )
    return _isin(elements, tests, invert)


@lowers(aten.nonzero_static.default)
def nonzero_static(self: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    if self.ndim == 0:
        return jnp.zeros((size, 0), np.int64)
    if not self.size:
        return jnp.full((size, self.ndim), fill_value, np.int64)
    flat = self.reshape(-1) != 0
    # The n-th that is not zero is written to place n of the result, and the others behind its end.
    ranks = jnp.where(flat, lax.cumsum(flat.astype(index_dtype(flat.size))) - 1, size)
    found = jnp.full((size,), -1, ranks.dtype)
    found = found.at[ranks].set(jnp.arange(flat.size, dtype=ranks.dtype), mode="drop")
    places = jnp.stack(jnp.unravel_index(found, self.shape), 1)
    return jnp.where(found[:, None] < 0, fill_value, places).astype(np.int64)


def _range_of(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    if not values.size:
        return jnp.zeros((), values.dtype), jnp.zeros((), values.dtype)
    return jnp.min(values), jnp.max(values)


def _widened_range(low: jax.Array, high: jax.Array, margin: float) -> tuple[jax.Array, jax.Array]:
    """Return a range that is not empty."""
    single = low == high
    return jnp.where(single, low - margin, low), jnp.where(single, high + margin, high)


def _filled(bins: int, places: jax.Array, inside: jax.Array, weights: jax.Array) -> jax.Array:
    """Return weights summed by bin; what is not inside goes beyond the last bin and is dropped."""
    weights = zero_behind_ends(weights)
    return jnp.zeros((bins,), weights.dtype).at[jnp.where(inside, places, bins)].add(weights, mode="drop")


@lowers(aten.histc.default)
def histc(self: jax.Array, bins: int = 100, min: object = 0, max: object = 0) -> jax.Array:
    is_whole = jnp.issubdtype(self.dtype, np.integer)
    values = self.reshape(-1).astype(np.int64) if is_whole else widened(self.reshape(-1))
    given = [jnp.asarray(number_as(limit, values.dtype)) for limit in (min, max)]
    own = given[0] == given[1]
    limits = [jnp.where(own, mine, theirs) for mine, theirs in zip(_range_of(values), given, strict=True)]
    low, high = _widened_range(limits[0], limits[1], 1)
    inside = (values >= low) & (values <= high)
    # Of integers, CUDA's way (the CPU takes none): all in whole numbers.
    places = (values - low) * bins // (high - low) if is_whole else (values - low) / (high - low) * bins
    places = jnp.clip(jnp.where(inside, places, 0).astype(np.int64), 0, bins - 1)
    return _filled(bins, places, inside, jnp.ones_like(self, shape=values.shape) if is_whole else jnp.ones_like(values))


def _histogram(
    values: jax.Array, edges: jax.Array, weight: jax.Array | None, density: bool
) -> tuple[jax.Array, jax.Array]:
    bins = edges.size - 1
    inside = (values >= edges[0]) & (values <= edges[-1])
    places = jnp.minimum(insertion_points(edges, values, right=True) - 1, bins - 1)
    counts = _filled(bins, places, inside, jnp.ones_like(values) if weight is None else weight.reshape(-1))
    if density:
        counts = counts / (jnp.sum(counts, dtype=counts.dtype) * jnp.diff(edges))
    return counts, edges


@lowers(aten.histogram.bin_ct)
def histogram(
    self: jax.Array,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> tuple[jax.Array, jax.Array]:
    values = self.reshape(-1)
    limits = [jnp.asarray(number_as(limit, values.dtype)) for limit in range] if range else _range_of(values)
    low, high = _widened_range(limits[0], limits[1], 0.5) if values.size or range else (limits[0], limits[1] + 1)
    return _histogram(values, jnp.linspace(low, high, bins + 1, dtype=values.dtype), weight, density)


@lowers(aten.histogram.bins_tensor)
def histogram_with_edges(
    self: jax.Array, bins: jax.Array, *, weight: jax.Array | None = None, density: bool = False
) -> tuple[jax.Array, jax.Array]:
    return _histogram(self.reshape(-1), bins, weight, density)
