"""Gather and scatter along one dimension, by element (`gather`, `scatter`) or by slice (`index_add`).

XLA's own gather and scatter need no help: on the CPU they beat sorting first and products with one-hot matrices, for
single elements and for rows. An index outside the dimension, an error on the CPU, reads the nearest element and writes
nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.dims import dimensioned, one_dim, without
from ..machinery.jax_sharding import uneven, whole_along, zero_behind_ends
from ..machinery.opmath import number_as, widened
from ..machinery.registry import lowers
from ..machinery.replica_axis import target_in_use

aten = torch.ops.aten

_COMBINE: dict[str, Callable[..., jax.Array]] = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "amax": lax.scatter_max,
    "amin": lax.scatter_min,
}

# Among bools, adding means "or" and multiplying "and".
_COMBINE_BOOLS = {"add": "amax", "multiply": "amin"}

Scatter = Callable[[jax.Array, int, jax.Array, Any, str], jax.Array]


def _combined(
    base: jax.Array, places: jax.Array, updates: jax.Array, numbers: lax.ScatterDimensionNumbers, how: str
) -> jax.Array:
    if base.dtype == np.bool_:
        base, updates = base.astype(np.uint8), updates.astype(np.uint8)
        how = _COMBINE_BOOLS.get(how, how)
    elif how in ("add", "multiply"):
        base, updates = widened(base), widened(updates)
    places, updates = _exact(_divisible(places, base), updates.astype(base.dtype), numbers, how)
    return _COMBINE[how](base, places[..., None], updates, numbers, mode="drop")


def _exact(
    places: jax.Array, updates: jax.Array, numbers: lax.ScatterDimensionNumbers, how: str
) -> tuple[jax.Array, jax.Array]:
    """Return indices and updates in a form that XLA's partitioner scatters correctly.

    The partitioner scatters padding after the end of a dimension to index 0, so for additions the padding becomes
    zeros. It
    also confuses batches of indices if they are divided along the indices of one batch.
    """
    ends = [dim for dim in range(updates.ndim) if dim not in numbers.update_window_dims]
    if numbers.operand_batching_dims:
        along = [place for place in range(places.ndim) if place not in numbers.scatter_indices_batching_dims]
    elif how in ("set", "add"):
        along = []
    else:
        along = uneven(places, range(places.ndim))
    if along:
        places, updates = whole_along(places, along), whole_along(updates, [ends[dim] for dim in along])
    return places, zero_behind_ends(updates) if how == "add" else updates


def _divisible(places: jax.Array, base: jax.Array) -> jax.Array:
    """Return indices that XLA's partitioner can divide unevenly: it ends the process at those of 64 bits."""
    target = target_in_use()
    most = np.iinfo(np.int32).max
    if target is None or target.mesh is None or places.dtype != np.int64 or max(base.shape, default=0) > most:
        return places
    return jnp.clip(places, -1, most).astype(np.int32)


def _spread(value: object, like: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Return the elements of `value` that an index of `shape` pairs with: all alike if `value` is a number."""
    if isinstance(value, jax.Array) and value.ndim == len(shape):
        return lax.slice(value, (0,) * value.ndim, shape)
    return jnp.broadcast_to(number_as(value, like.dtype), shape)


def scatter_elements(base: jax.Array, dim: int, index: jax.Array, source: object, how: str) -> jax.Array:
    """Return `base` with each element of `source` combined in at its index along `dim`; `base` has dimensions."""
    if not index.size:
        return base
    updates = _spread(source, base, index.shape)
    others = without(dim, base.ndim)
    extent = tuple(base.shape[d] if d == dim else index.shape[d] for d in range(base.ndim))
    numbers = lax.ScatterDimensionNumbers((), (dim,), (dim,), others, others)
    corner = lax.slice(base, (0,) * base.ndim, extent)
    result = _combined(corner, index, updates, numbers, how).astype(base.dtype)
    # Along the other dimensions the index may cover less than the tensor.
    return result if extent == base.shape else lax.dynamic_update_slice(base, result, (0,) * base.ndim)


def scatter_slices(base: jax.Array, dim: int, index: jax.Array, source: object, how: str) -> jax.Array:
    """Return `base` with each slice of `source` along `dim` combined in at the slice's index; `base` has dimensions."""
    index = dimensioned(index)
    updates = _spread(source, base, base.shape[:dim] + index.shape + base.shape[dim + 1 :])
    numbers = lax.ScatterDimensionNumbers(without(dim, base.ndim), (dim,), (dim,))
    return _combined(base, index, updates, numbers, how)


def gather_elements(operand: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    """Return the elements of `operand` at `index` along `dim`; both have the same number of dimensions, at least
    one.
    """
    others = without(dim, operand.ndim)
    extent = tuple(operand.shape[d] if d == dim else index.shape[d] for d in range(operand.ndim))
    numbers = lax.GatherDimensionNumbers((), (dim,), (dim,), others, others)
    corner = lax.slice(operand, (0,) * operand.ndim, extent)
    return lax.gather(corner, index[..., None], numbers, (1,) * operand.ndim, mode="clip")


@lowers(aten.gather.default)
def gather(self: jax.Array, dim: int, index: jax.Array, *, sparse_grad: bool = False) -> jax.Array:
    if not index.size:
        return jnp.zeros(index.shape, self.dtype)
    dim = one_dim(dim, self.ndim)
    return gather_elements(dimensioned(self), dim, dimensioned(index)).reshape(index.shape)


@lowers(aten.index_select.default)
def index_select(self: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    picked = jnp.take(dimensioned(self), dimensioned(index), one_dim(dim, self.ndim), mode="clip")
    return picked if self.ndim else picked.reshape(())


def _scatter(self: jax.Array, dim: int, index: jax.Array, source: object, how: str) -> jax.Array:
    source = dimensioned(source) if isinstance(source, jax.Array) and not source.weak_type else source
    dim = one_dim(dim, self.ndim)
    return scatter_elements(dimensioned(self), dim, dimensioned(index), source, how).reshape(self.shape)


@lowers(aten.scatter.src)
def scatter(self: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    return _scatter(self, dim, index, src, "set")


@lowers(aten.scatter.value)
def scatter_value(self: jax.Array, dim: int, index: jax.Array, value: object) -> jax.Array:
    return _scatter(self, dim, index, value, "set")


@lowers(aten.scatter.reduce)
def scatter_combine(self: jax.Array, dim: int, index: jax.Array, src: jax.Array, *, reduce: str) -> jax.Array:
    return _scatter(self, dim, index, src, reduce)


@lowers(aten.scatter.value_reduce)
def scatter_combine_value(self: jax.Array, dim: int, index: jax.Array, value: object, *, reduce: str) -> jax.Array:
    return _scatter(self, dim, index, value, reduce)


@lowers(aten.scatter_add.default)
def scatter_add(self: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    return _scatter(self, dim, index, src, "add")


def _neutral(dtype: np.dtype, how: str) -> Any:
    """Return the number that a reduction starts from."""
    if how == "multiply":
        return np.ones((), dtype)
    if how == "add":
        return np.zeros((), dtype)
    lowest = how == "amax"
    if dtype == np.bool_:
        return np.asarray(not lowest)
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(-np.inf if lowest else np.inf).astype(dtype)
    limits = np.iinfo(dtype)
    return np.asarray(limits.min if lowest else limits.max, dtype)


def _reduced(
    self: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, include_self: bool, scatter: Scatter
) -> jax.Array:
    """Reduce the elements or slices of `source` with the same index, with `include_self` also those of `self`."""
    how = {"sum": "add", "mean": "add", "prod": "multiply"}.get(reduce, reduce)
    # How much comes to each place; XLA drops this where nothing below needs it.
    hits = scatter(jnp.zeros(self.shape, np.int32), dim, index, np.int32(1), "add")
    base = widened(self) if how in ("add", "multiply") else self
    if not include_self:
        base = jnp.where(hits > 0, _neutral(base.dtype, how), base)
    result = scatter(base, dim, index, source.astype(base.dtype), how)
    if reduce != "mean":
        return result
    count = jnp.maximum(hits + 1 if include_self else hits, 1).astype(result.dtype)
    return result / count if jnp.issubdtype(result.dtype, jnp.inexact) else result // count


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    self: jax.Array, dim: int, index: jax.Array, src: jax.Array, reduce: str, *, include_self: bool = True
) -> jax.Array:
    operand, index, src = dimensioned(self), dimensioned(index), dimensioned(src)
    dim = one_dim(dim, self.ndim)
    return _reduced(operand, dim, index, src, reduce, include_self, scatter_elements).reshape(self.shape)


def _check_dimensions(self: jax.Array, source: jax.Array, dim: int) -> None:
    if source.ndim != self.ndim:  # a number is no list of one number here
        raise ValueError(
            f"source must have the shape of self except in dim {dim}: self has the shape {self.shape}, "
            f"source {source.shape}"
        )


@lowers(aten.index_reduce.default)
def index_reduce(
    self: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, *, include_self: bool = True
) -> jax.Array:
    _check_dimensions(self, source, dim)
    operand, source = dimensioned(self), dimensioned(source)
    dim = one_dim(dim, self.ndim)
    return _reduced(operand, dim, index, source, reduce, include_self, scatter_slices).reshape(self.shape)


@lowers(aten.index_add.default)
def index_add(self: jax.Array, dim: int, index: jax.Array, source: jax.Array, *, alpha: object = 1) -> jax.Array:
    _check_dimensions(self, source, dim)
    operand, source = dimensioned(self), dimensioned(source)
    if operand.dtype == np.bool_:
        source = source & jnp.asarray(alpha != 0)
    else:
        source = widened(source)
        source = source * number_as(alpha, source.dtype)
    return scatter_slices(operand, one_dim(dim, self.ndim), index, source, "add").reshape(self.shape)


@lowers(aten.index_copy.default)
def index_copy(self: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    operand, source = dimensioned(self), dimensioned(source)
    dim = one_dim(dim, self.ndim)
    if index.size == 1 and dim and operand.dtype in (np.float32, np.float64):
        forms = {"cpu": partial(_copied_in_rows, dim), "default": partial(_copied, dim)}
        return lax.platform_dependent(operand, index, source, **forms)
    return _copied(dim, operand, index, source).reshape(self.shape)


def _copied(dim: int, base: jax.Array, index: jax.Array, source: jax.Array) -> jax.Array:
    return scatter_slices(base, dim, index, source, "set")


def _copied_in_rows(dim: int, base: jax.Array, index: jax.Array, source: jax.Array) -> jax.Array:
    # If XLA:CPU recognises a single slice, it writes a new copy of the base for each reader: in every step of a
    # decoder, four
    # copies of each layer's values. If each row of the slice has its own index, XLA writes once and in place. (It would
    # convert all narrow floats to float32 and back.)
    outer = tuple(range(dim))
    numbers = lax.ScatterDimensionNumbers(tuple(range(dim, base.ndim - 1)), (dim,), (dim,), outer, outer)
    places = jnp.broadcast_to(index.reshape(-1), (*base.shape[:dim], 1))
    rows = _spread(source, base, (*base.shape[:dim], 1, *base.shape[dim + 1 :]))
    return lax.scatter(base, places, lax.squeeze(rows, [dim]).astype(base.dtype), numbers, mode="drop")


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(self: jax.Array, dim: int, index: jax.Array, value: object) -> jax.Array:
    # The one function of this family that takes negative indices.
    operand, dim = dimensioned(self), one_dim(dim, self.ndim)
    index = jnp.where(index < 0, index + operand.shape[dim], index)
    return scatter_slices(operand, dim, index, value, "set").reshape(self.shape)
