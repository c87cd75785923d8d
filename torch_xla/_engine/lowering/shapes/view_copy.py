"""Copies of views: `torch.view_copy` and its relatives, and cuts that do not alias."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ... import dtypes
from ...compat.names import jax as private
from ..machinery.dims import one_dim
from ..machinery.registry import lowers
from .slicing import slice_bounds

aten = torch.ops.aten


@lowers(aten.view_copy.default, aten._reshape_copy.default, aten._unsafe_view.default, aten._reshape_alias_copy.default)
def reshape(self: jax.Array, size: Sequence[int], stride: Sequence[int] | None = None) -> jax.Array:
    return self.reshape(tuple(size))


@lowers(aten.alias_copy.default, aten.detach_copy.default)
def copy(self: jax.Array) -> jax.Array:
    return self


@lowers(aten.view_copy.dtype)
def view_as_dtype(self: jax.Array, dtype: torch.dtype) -> jax.Array:
    return self.view(dtypes.to_jax(dtype))


@lowers(aten.expand_copy.default)
def expand(self: jax.Array, size: Sequence[int], *, implicit: bool = False) -> jax.Array:
    added = len(size) - self.ndim
    return jnp.broadcast_to(self, [self.shape[d - added] if n == -1 else n for d, n in enumerate(size)])


@lowers(aten.permute_copy.default)
def permute(self: jax.Array, dims: Sequence[int]) -> jax.Array:
    return lax.transpose(self, [dim % self.ndim for dim in dims])


@lowers(aten.transpose_copy.int)
def transpose(self: jax.Array, dim0: int, dim1: int) -> jax.Array:
    return jnp.swapaxes(self, dim0, dim1) if self.ndim else self


@lowers(aten.t_copy.default)
def t(self: jax.Array) -> jax.Array:
    return self.T


@lowers(aten.squeeze_copy.default, aten.squeeze_copy.dim, aten.squeeze_copy.dims)
def squeeze(self: jax.Array, dim: int | Sequence[int] | None = None) -> jax.Array:
    dims = range(self.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return lax.squeeze(self, [d for d in dims if self.ndim and self.shape[d] == 1])


@lowers(aten.unsqueeze_copy.default)
def unsqueeze(self: jax.Array, dim: int) -> jax.Array:
    return jnp.expand_dims(self, dim)


@lowers(aten.select_copy.int)
def select(self: jax.Array, dim: int, index: int) -> jax.Array:
    if any(map(jax.export.is_symbolic_dim, (self.shape[dim], index))):
        size, place = jnp.asarray(self.shape[dim], np.int64), jnp.asarray(index, np.int64)
        return lax.dynamic_index_in_dim(self, jnp.where(place < 0, place + size, place), dim, keepdims=False)
    return lax.index_in_dim(self, index, dim, keepdims=False)


# PyTorch's end of a slice without an end.
_TO_THE_END = 2**63 - 1


@lowers(aten.slice_copy.Tensor)
def slice_of(
    self: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    dim = one_dim(dim, self.ndim)
    if any(jax.export.is_symbolic_dim(each) for each in (self.shape[dim], start, end)):  # type: ignore[arg-type]
        last = None if isinstance(end, int) and end >= _TO_THE_END else end
        return self[(*[slice(None)] * dim, slice(start, last, step))]
    places = slice_bounds(self.shape[dim], start, end, step)
    return lax.slice_in_dim(self, places.start, max(places.start, places.stop), step, dim)


@lowers(aten.narrow_copy.default)
def narrow(self: jax.Array, dim: int, start: int, length: int) -> jax.Array:
    start = start + self.shape[dim] if start < 0 else start
    return lax.slice_in_dim(self, start, start + length, axis=dim)


@lowers(aten.diagonal_copy.default)
def diagonal(self: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    rows, columns = self.shape[dim1], self.shape[dim2]
    if any(map(jax.export.is_symbolic_dim, (rows, columns))):
        below, right = max(-offset, 0), max(offset, 0)
        length = private.greater_size(private.smaller_size(rows - below, columns - right), 0)
        along = jnp.arange(length)
        return jnp.moveaxis(self, (dim1, dim2), (-2, -1))[..., along + below, along + right]
    return jnp.diagonal(self, offset, dim1, dim2)


@lowers(aten.unfold_copy.default)
def unfold(self: jax.Array, dimension: int, size: int, step: int) -> jax.Array:
    if self.ndim == 0:
        return jnp.broadcast_to(self, (size,))
    dim = one_dim(dimension, self.ndim)
    starts = jnp.arange(0, self.shape[dim] - size + 1, step, dtype=jnp.int32)
    places = starts[:, None] + lax.iota(jnp.int32, size)
    return jnp.moveaxis(jnp.take(self, places, dim, mode="clip"), dim + 1, -1)


@lowers(aten.view_as_real_copy.default)
def view_as_real(self: jax.Array) -> jax.Array:
    return jnp.stack([self.real, self.imag], -1)


@lowers(aten.view_as_complex_copy.default)
def view_as_complex(self: jax.Array) -> jax.Array:
    return lax.complex(self[..., 0], self[..., 1])


@lowers(aten._conj_copy.default)
def conj(self: jax.Array) -> jax.Array:
    return jnp.conj(self)


@lowers(aten._neg_view_copy.default)
def negative(self: jax.Array) -> jax.Array:
    return -self


@lowers(aten.split_with_sizes_copy.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(self: jax.Array, split_sizes: Sequence[int], dim: int = 0) -> list[jax.Array]:
    return list(lax.split(self, tuple(split_sizes), one_dim(dim, self.ndim)))


@lowers(aten.split_copy.Tensor, aten.unsafe_split.Tensor)
def split(self: jax.Array, split_size: int, dim: int = 0) -> list[jax.Array]:
    total = self.shape[dim]
    if not total:
        return [self]
    sizes = [min(split_size, total - start) for start in range(0, total, split_size)]
    return split_with_sizes(self, sizes, dim)


@lowers(aten.unbind_copy.int)
def unbind(self: jax.Array, dim: int = 0) -> list[jax.Array]:
    return [lax.index_in_dim(self, place, dim, keepdims=False) for place in range(self.shape[dim])]
