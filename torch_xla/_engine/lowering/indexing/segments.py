"""Segment reductions: reduce consecutive elements, with segments given by lengths or offsets."""

from dataclasses import dataclass
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..machinery.jax_sharding import uneven, whole_along, zero_behind_ends
from ..machinery.opmath import number_as, widened
from ..machinery.registry import lowers
from .search import insertion_points

aten = torch.ops.aten

Optional = jax.Array | None


@dataclass(frozen=True, slots=True)
class _Segments:
    """Segments of rows. Elements are (batch, row, inner), results (batch, segment, inner)."""

    batch: int
    count: int
    numbers: jax.Array  # for each row, its segment among those of all batches; rows of none have the last number
    lengths: jax.Array

    def combine(self, rows: jax.Array, how: str) -> jax.Array:
        """Reduce the rows of each segment by `how`: sum, product, `max` or `min`."""
        inner = rows.shape[-1]
        total = self.batch * self.count + 1
        rows, numbers = rows.reshape(-1, inner), self.numbers.reshape(-1)
        if how == "sum":
            rows = zero_behind_ends(rows)
        else:  # of other reductions zero is part of the result
            rows, numbers = (whole_along(each, uneven(each, [0])) for each in (rows, numbers))
        reduced = getattr(jax.ops, f"segment_{how}")(rows, numbers, total)
        return reduced[:-1].reshape(self.batch, self.count, inner)

    def spread(self, results: jax.Array) -> jax.Array:
        """Return for each row, the result of its segment; 0 for rows of none."""
        inner = results.shape[-1]
        padded = jnp.concatenate([results.reshape(-1, inner), jnp.zeros((1, inner), results.dtype)])
        return padded[self.numbers]


def _segments(rows: int, axis: int, lengths: Optional, offsets: Optional) -> _Segments:
    given = lengths if lengths is not None else offsets
    if given is None:
        raise NotImplementedError("segment_reduce() by indices")
    batch = prod(given.shape[:axis])
    given = given.reshape(batch, -1).astype(np.int64)
    ends = jnp.cumsum(given, 1) if lengths is not None else given[:, 1:]
    starts = jnp.pad(ends, ((0, 0), (1, 0)))[:, :-1] if lengths is not None else given[:, :-1]
    count = ends.shape[1]
    places = jnp.broadcast_to(jnp.arange(rows), (batch, rows))
    segment = insertion_points(starts, places, right=True).astype(np.int64) - 1
    inside = (segment >= 0) & (places < (ends[:, -1:] if count else 0))
    numbers = jnp.where(inside, segment + jnp.arange(batch)[:, None] * count, batch * count)
    return _Segments(batch, count, numbers, (ends - starts)[..., None])


def _rows(x: jax.Array, axis: int) -> jax.Array:
    return x.reshape(prod(x.shape[:axis]), x.shape[axis], -1 if x.size else prod(x.shape[axis + 1 :]))


@lowers(aten.segment_reduce.default)
def segment_reduce(
    data: jax.Array,
    reduce: str,
    *,
    lengths: Optional = None,
    indices: Optional = None,
    offsets: Optional = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: object = None,
) -> jax.Array:
    axis %= data.ndim
    segments = _segments(data.shape[axis], axis, lengths, offsets)
    rows = _rows(widened(data), axis)
    result = segments.combine(rows, "sum" if reduce == "mean" else reduce)
    if initial is not None:
        start = number_as(initial, result.dtype)
        combine = {"max": jnp.maximum, "min": jnp.minimum, "prod": jnp.multiply}.get(reduce, jnp.add)
        result = combine(result, start)
    if reduce == "mean":
        mean = result / segments.lengths.astype(result.dtype)
        # Nothing has no mean, unless one to start from is given.
        result = mean if initial is None else jnp.where(segments.lengths > 0, mean, result)
    return result.reshape(*data.shape[:axis], segments.count, *data.shape[axis + 1 :])


@lowers(aten._segment_reduce_backward.default)
def segment_reduce_backward(
    grad: jax.Array,
    output: jax.Array,
    data: jax.Array,
    reduce: str,
    *,
    lengths: Optional = None,
    offsets: Optional = None,
    axis: int = 0,
    initial: object = None,
) -> jax.Array:
    axis %= data.ndim
    segments = _segments(data.shape[axis], axis, lengths, offsets)
    rows, results, gradient = (_rows(widened(x), axis) for x in (data, output, grad))
    spread = segments.spread
    if reduce == "sum":
        result = spread(gradient)
    elif reduce == "mean":
        result = spread(gradient / jnp.maximum(segments.lengths, 1).astype(gradient.dtype))
    elif reduce == "prod":
        result = spread(gradient) * _product_of_others(rows, segments, 1 if initial is None else initial)
    else:
        reached = (rows == spread(results)) | jnp.isnan(rows)
        winners = spread(segments.combine(reached.astype(rows.dtype), "sum"))
        result = jnp.where(reached, spread(gradient), 0)
        # PyTorch shares a gradient among several winners only if it is positive.
        result = jnp.where((winners > 1) & (result > 0), result / winners, result)
    return result.reshape(data.shape)


def _product_of_others(rows: jax.Array, segments: _Segments, initial: object) -> jax.Array:
    """Return for each row, the product of the others of its segment, also where some are 0 or NaN."""
    is_zero, is_nan = rows == 0, jnp.isnan(rows)
    one = jnp.ones((), rows.dtype)
    product = segments.combine(jnp.where(is_zero | is_nan, one, rows), "prod") * number_as(initial, rows.dtype)
    zeros, nans = (segments.spread(segments.combine(x.astype(np.int32), "sum")) for x in (is_zero, is_nan))
    product = segments.spread(product) / jnp.where(is_zero | is_nan, one, rows)
    product = jnp.where(zeros - is_zero > 0, jnp.zeros((), rows.dtype), product)
    return jnp.where(nans - is_nan > 0, jnp.full((), jnp.nan, rows.dtype), product)
