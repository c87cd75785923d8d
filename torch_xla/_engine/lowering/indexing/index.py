"""Index with tensors: `x[i, :, j]`, writes through such indices, masks, and indices into the flat tensor.

Negative indices count from the end. An index outside a dimension, an error on the CPU, reads the nearest element and
writes nothing.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.jax_sharding import whole_rows, zero_behind_ends
from ..machinery.opmath import FLOAT32, is_complex, is_float, number_as
from ..machinery.registry import lowers
from ..machinery.replica_axis import spread_target
from .sorting import index_dtype

aten = torch.ops.aten

Indices = Sequence[jax.Array | None]


def _is_mask(index: jax.Array | None) -> bool:
    return index is not None and index.dtype in (np.bool_, np.uint8)


def _places(indices: Indices) -> tuple[Any, ...]:
    """Return indices as JAX takes them; it places the dimensions of the result as PyTorch does."""
    if any(_is_mask(index) for index in indices):
        raise NotImplementedError("the values of a mask decide the shape of the selection")
    return tuple(slice(None) if index is None else index for index in indices)


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_of(self: jax.Array, indices: Indices) -> jax.Array:
    places = [index if isinstance(index, slice) else whole_rows(index) for index in _places(indices)]
    return self.at[tuple(places)].get(mode="clip")


@lowers(aten.index_put.default, aten._unsafe_index_put.default, aten._index_put_impl.default)
def index_put(
    self: jax.Array, indices: Indices, values: jax.Array, accumulate: bool = False, unsafe: bool = False
) -> jax.Array:
    given = [place for place, index in enumerate(indices) if index is not None]
    index = indices[given[0]] if len(given) == 1 else None
    if index is not None and _is_mask(index):
        return _put_masked(self, index.astype(np.bool_), given[0], values, accumulate)
    target = self.at[_places(indices)]
    if not accumulate:
        return target.set(values.astype(self.dtype), mode="drop")
    if self.dtype == np.bool_:
        return target.max(_ready(self, indices, values), mode="drop")
    if is_float(self) and self.dtype.itemsize < 4:
        # One rounding at the end instead of one an addition.
        wide = _ready(self, indices, values.astype(FLOAT32))
        return self.astype(FLOAT32).at[_places(indices)].add(wide, mode="drop")
    return target.add(_ready(self, indices, values), mode="drop")


def _ready(self: jax.Array, indices: Indices, values: jax.Array) -> jax.Array:
    """Return `values` for each place of `self`, as several devices can add them up."""
    if spread_target() is None:
        return values
    shape = jax.eval_shape(lambda: self.at[_places(indices)].get(mode="clip")).shape
    return zero_behind_ends(jnp.broadcast_to(values, shape))


def _put_masked(self: jax.Array, mask: jax.Array, axis: int, values: jax.Array, accumulate: bool) -> jax.Array:
    """Write the n-th value at the n-th true element of `mask`, which covers the dimensions from `axis` on."""
    behind = self.ndim - axis - mask.ndim
    selected_ndim = axis + 1 + behind
    shape = values.shape[max(values.ndim - selected_ndim, 0) :]
    values = values.reshape((1,) * (selected_ndim - len(shape)) + shape)
    if values.shape[axis] == 0:
        return self
    if values.shape[axis] == 1:
        values = values.reshape(values.shape[:axis] + (1,) * mask.ndim + values.shape[axis + 1 :])
    else:
        values = jnp.take(values, _ranks(mask), axis, mode="clip")
    values = jnp.broadcast_to(values, self.shape).astype(self.dtype)
    if accumulate:
        values = self | values if self.dtype == np.bool_ else self + values
    return jnp.where(mask.reshape(mask.shape + (1,) * behind), values, self)


def _ranks(mask: jax.Array) -> jax.Array:
    """Return for every true element of `mask`, how many come before it."""
    flat = mask.reshape(-1).astype(index_dtype(mask.size))
    return (lax.cumsum(flat) - 1).reshape(mask.shape)


@lowers(aten._unsafe_masked_index.default)
def unsafe_masked_index(self: jax.Array, mask: jax.Array, indices: Indices, fill: object) -> jax.Array:
    # Where the mask is false the index may be anything.
    filling = number_as(fill, self.dtype)
    if not self.size:
        positions = [jnp.zeros_like(index) for index in indices if index is not None]
        shape = jnp.broadcast_shapes(mask.shape, *(position.shape for position in positions))
        return jnp.full(shape, filling, self.dtype)
    return jnp.where(mask, index_of(self, indices), filling)


@lowers(aten._unsafe_masked_index_put_accumulate.default)
def unsafe_masked_index_put_accumulate(
    self: jax.Array, mask: jax.Array, indices: Indices, values: jax.Array
) -> jax.Array:
    if not self.size:
        return self
    return index_put(self, indices, jnp.where(mask, values, jnp.zeros_like(values)), True)


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(self: jax.Array, mask: jax.Array, value: object) -> jax.Array:
    if not is_complex(self) and isinstance(value, complex | jax.Array) and jnp.iscomplexobj(value):
        # Its imaginary part is 0, except for truth values, or PyTorch refuses it.
        value = value != 0 if self.dtype == np.bool_ else value.real
    return jnp.where(mask, number_as(value, self.dtype), self)


@lowers(aten.masked_scatter.default)
def masked_scatter(self: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    if mask.dtype != np.bool_:
        raise TypeError(f"masked_scatter takes a mask of bools, not of {mask.dtype}")
    self, mask = jnp.broadcast_arrays(self, mask)
    if not source.size:
        return self
    return jnp.where(mask, jnp.take(source.reshape(-1), _ranks(mask), mode="clip"), self)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad_output: jax.Array, mask: jax.Array, sizes: Sequence[int]) -> jax.Array:
    grad_output, mask = jnp.broadcast_arrays(grad_output, mask)
    size = int(np.prod(sizes))
    places = jnp.where(mask, _ranks(mask), size).reshape(-1)
    result = jnp.zeros((size,), grad_output.dtype).at[places].set(grad_output.reshape(-1), mode="drop")
    return result.reshape(tuple(sizes))


@lowers(aten.take.default)
def take(self: jax.Array, index: jax.Array) -> jax.Array:
    return index_of(self.reshape(-1), [index])


@lowers(aten.put.default)
def put(self: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False) -> jax.Array:
    flat = index_put(self.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(self.shape)
