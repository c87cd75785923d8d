"""Sort, and what follows from an order: the largest elements, the k-th, medians and modes.

NaN counts as the largest value, and equal elements keep their order, in both directions.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.dims import dimensioned, one_dim
from ..machinery.opmath import is_float, widened
from ..machinery.registry import lowers

aten = torch.ops.aten


def index_dtype(size: int) -> np.dtype:
    """Return the narrowest dtype that counts to `size`: XLA sorts and scans it faster than int64."""
    # A size that an export leaves open is compared with nothing.
    return np.dtype(np.int32 if isinstance(size, int) and size < 2**31 else np.int64)


def ordered(operand: jax.Array, axis: int, descending: bool = False) -> tuple[jax.Array, jax.Array]:
    """Return the elements in order and the places they come from. `operand` has dimensions."""
    places = lax.broadcasted_iota(index_dtype(operand.shape[axis]), operand.shape, axis)
    if descending:
        # The reverse of an ascending stable order of the reverse: NaN first, equal elements as they came.
        operand, places = lax.rev(operand, (axis,)), lax.rev(places, (axis,))
    values, places = lax.sort((operand, places), dimension=axis, is_stable=True, num_keys=1)
    if descending:
        values, places = lax.rev(values, (axis,)), lax.rev(places, (axis,))
    return values, places


ORDER_OF_ROWS = "xla::order_of_rows"


@lowers(ORDER_OF_ROWS)
def order_of_rows(rows: jax.Array) -> jax.Array:
    """Return the stable lexicographic order of the rows of a matrix: they are sorted by the last column first."""

    def by_column(step: jax.Array, order: jax.Array) -> jax.Array:
        column = lax.dynamic_index_in_dim(rows, rows.shape[1] - 1 - step, 1, keepdims=False)
        return lax.sort((column[order], order), num_keys=1, is_stable=True)[1]

    return lax.fori_loop(0, rows.shape[1], by_column, lax.iota(np.int64, rows.shape[0]))


@lowers(aten.sort.default, aten.sort.stable)
def sort(
    self: jax.Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[jax.Array, jax.Array]:
    values, places = ordered(dimensioned(self), one_dim(dim, self.ndim), descending)
    return values.reshape(self.shape), places.astype(np.int64).reshape(self.shape)


def _largest_first(operand: jax.Array, largest: bool) -> jax.Array:
    """Return keys whose `lax.top_k` order, a total one of bits, is PyTorch's order of the elements."""
    if operand.dtype == np.bool_:
        operand = operand.astype(np.int32)
    if not is_float(operand):
        return operand if largest else ~operand
    # XLA has a fast path only for float32. It compares bits, which distinguish negative NaNs from others, and -0 from
    # 0. These two are equal to PyTorch, which promises no order of equal elements.
    keys = widened(operand)
    greatest = jnp.copysign(jnp.asarray(np.nan, keys.dtype), 1 if largest else -1)
    return jnp.where(operand != operand, greatest, keys if largest else -keys)


def _elements_of(keys: jax.Array, dtype: np.dtype, largest: bool) -> jax.Array:
    """Return the elements that `_largest_first` made keys of: to gather them would move the whole operand."""
    if not largest:
        keys = -keys if is_float(keys) else ~keys
    return keys.astype(dtype)


@lowers(aten.topk.default)
def topk(
    self: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[jax.Array, jax.Array]:
    operand, axis = dimensioned(self), one_dim(dim, self.ndim)
    if jax.export.is_symbolic_dim(k):
        # XLA's own takes no such number from an exported program.
        foremost = jnp.arange(k)
        values, places = (jnp.take(part, foremost, axis, mode="clip") for part in ordered(operand, axis, largest))
        return values, places.astype(np.int64)
    keys, places = lax.top_k(_largest_first(operand, largest), k, axis=axis)
    values, places = _elements_of(keys, operand.dtype, largest), places.astype(np.int64)
    return (values, places) if self.ndim else (values.reshape(()), places.reshape(()))


def _at_rank(
    self: jax.Array, dim: int, keepdim: bool, rank: jax.Array | int, order: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Return the element of a rank (one for all, or one for each vector along `dim`) and its place."""
    axis = one_dim(dim, self.ndim)
    if not isinstance(rank, jax.Array) and any(map(jax.export.is_symbolic_dim, (rank, order[0].shape[axis]))):
        place = jnp.asarray(rank, np.int64)
        picked = [lax.dynamic_slice_in_dim(part, place, 1, axis) for part in order]
    elif isinstance(rank, int):
        picked = [lax.slice_in_dim(part, rank, rank + 1, axis=axis) for part in order]
    else:
        picked = [jnp.take_along_axis(part, rank, axis, mode="promise_in_bounds") for part in order]
    values, places = picked[0], picked[1].astype(np.int64)
    if self.ndim and keepdim:
        return values, places
    return lax.squeeze(values, (axis,)), lax.squeeze(places, (axis,))


@lowers(aten.kthvalue.default)
def kthvalue(self: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    return _at_rank(self, dim, keepdim, k - 1, ordered(dimensioned(self), one_dim(dim, self.ndim)))


def _nans(operand: jax.Array, axis: int) -> jax.Array:
    return jnp.sum(operand != operand, axis, np.int64, keepdims=True)


@lowers(aten.median.dim)
def median_along(self: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    # The lower of two middle elements, or the first NaN if there is any.
    operand, axis = dimensioned(self), one_dim(dim, self.ndim)
    size = _size_along(operand, axis)
    rank: jax.Array | int = (size - 1) // 2
    if is_float(operand):
        nans = _nans(operand, axis)
        rank = jnp.where(nans > 0, size - nans, rank)
    return _at_rank(self, dim, keepdim, rank, ordered(operand, axis))


def _size_along(operand: jax.Array, axis: int) -> int:
    if not operand.shape[axis]:
        raise IndexError(f"median(): Expected reduction dim {axis} to have non-zero size.")
    return operand.shape[axis]


@lowers(aten.nanmedian.dim)
def nanmedian_along(self: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    operand, axis = dimensioned(self), one_dim(dim, self.ndim)
    rank = jnp.maximum(_size_along(operand, axis) - _nans(operand, axis) - 1, 0) // 2
    return _at_rank(self, dim, keepdim, rank, ordered(operand, axis))


@lowers(aten.median.default)
def median(self: jax.Array) -> jax.Array:
    return median_along(self.reshape(-1), 0)[0] if self.size else jnp.full((), np.nan).astype(self.dtype)


@lowers(aten.nanmedian.default)
def nanmedian(self: jax.Array) -> jax.Array:
    return nanmedian_along(self.reshape(-1), 0)[0] if self.size else jnp.full((), np.nan).astype(self.dtype)


@lowers(aten.mode.default)
def mode(self: jax.Array, dim: int = -1, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    # In order, equal elements are a run; the first run of the greatest length holds the smallest of the modes.
    operand, axis = dimensioned(self), one_dim(dim, self.ndim)
    values, places = ordered(operand, axis)
    place = lax.broadcasted_iota(places.dtype, values.shape, axis)
    starts = values != jnp.roll(values, 1, axis)
    first = lax.cummax(jnp.where(starts, place, 0), axis=axis)
    end = lax.argmax(place - first, axis, places.dtype)
    return _at_rank(self, dim, keepdim, jnp.expand_dims(end, axis), (values, places))
