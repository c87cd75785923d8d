"""Write to part of a tensor, functionally: slices, selections, diagonals, and the gradients of reading them."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...compat.names import jax as private
from ..machinery.cast import cast
from ..machinery.dims import one_dim
from ..machinery.jax_sharding import spaced
from ..machinery.opmath import number_as
from ..machinery.registry import lowers

aten = torch.ops.aten


def slice_bounds(size: int, start: int | None, end: int | None, step: int) -> range:
    """Return the places that a slice selects; bounds as Python reads them."""
    return range(size)[start:end:step]


def _spread_slice(value: jax.Array, shape: Sequence[int], dim: int, places: range, fill: jax.Array) -> jax.Array:
    """Return a tensor of `shape` with `value` at `places` along `dim` and `fill` elsewhere."""
    padding = [(0, 0, 0)] * len(shape)
    if places:
        padding[dim] = (places.start, shape[dim] - places[-1] - 1, places.step - 1)
    else:
        padding[dim] = (0, shape[dim], 0)
    return spaced(value, fill, padding)


def _check_source(src: jax.Array, expected: tuple[int, ...]) -> None:
    if src.shape != expected:
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. "
            f"src size = {list(src.shape)}, slice size = {list(expected)}"
        )


@lowers(aten.slice_scatter.default)
def slice_scatter(
    self: jax.Array, src: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    dim = one_dim(dim, self.ndim)
    if any(jax.export.is_symbolic_dim(each) for each in (self.shape[dim], start, end)):  # type: ignore[arg-type]
        return _written_from(self, cast(src, self.dtype), dim, 0 if start is None else start, step)
    places = slice_bounds(self.shape[dim], start, end, step)
    _check_source(src, self.shape[:dim] + (len(places),) + self.shape[dim + 1 :])
    if not places:
        return self
    src = cast(src, self.dtype)
    if step == 1:
        return lax.dynamic_update_slice_in_dim(self, src, places.start, dim)
    along = lax.broadcasted_iota(np.int32, self.shape, dim) - places.start
    written = (along >= 0) & (along % step == 0) & (along <= places[-1] - places.start)
    return jnp.where(written, _spread_slice(src, self.shape, dim, places, jnp.zeros((), self.dtype)), self)


def _written_from(self: jax.Array, src: jax.Array, dim: int, start: Any, step: int) -> jax.Array:
    """Do as `slice_scatter` where a size is known to a run alone: `src` has as many elements as there are to write."""
    whole, count = self.shape[dim], src.shape[dim]
    first = start if start >= 0 else private.greater_size(whole + start, 0)
    zero = jnp.zeros((), self.dtype)
    spread = lax.pad(src, zero, [(0, 0, step - 1 if each == dim else 0) for each in range(self.ndim)])
    behind = whole - first - spread.shape[dim]  # negative where nothing is written: then the margin before is cut
    spread = lax.pad(spread, zero, [(first, behind, 0) if each == dim else (0, 0, 0) for each in range(self.ndim)])
    along = lax.broadcasted_iota(np.int64, self.shape, dim) - jnp.asarray(first, np.int64)
    written = (along >= 0) & (along < jnp.asarray(count, np.int64) * step) & (along % step == 0)
    return jnp.where(written, spread, self)


@lowers(aten.slice_backward.default)
def slice_backward(
    grad_output: jax.Array, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> jax.Array:
    dim = one_dim(dim, len(input_sizes))
    whole, count = input_sizes[dim], grad_output.shape[dim]
    zero = jnp.zeros((), grad_output.dtype)
    if any(map(jax.export.is_symbolic_dim, (whole, start, count))):
        return _spread_by_places(grad_output, input_sizes, dim, start, step)
    if not isinstance(start, jax.Array):
        return _spread_slice(grad_output, input_sizes, dim, slice_bounds(whole, start, None, step)[:count], zero)
    spread = spaced(grad_output, zero, [(0, 0, (each == dim) * (step - 1)) for each in range(grad_output.ndim)])
    first = jnp.clip(jnp.where(start < 0, start + whole, start), 0, whole)
    return lax.dynamic_update_slice_in_dim(lax.full(tuple(input_sizes), zero), spread, first, dim)


def _spread_by_places(grad: jax.Array, shape: Sequence[int], dim: int, start: jax.Array | int, step: int) -> jax.Array:
    """Return the gradient of a slice of a size that is not known: each element asks which one of the slice it is, if it
    is.
    """
    count, whole = (jnp.asarray(size, np.int32) for size in (grad.shape[dim], shape[dim]))
    begin = jnp.asarray(start, np.int32)
    behind = lax.broadcasted_iota(np.int32, tuple(shape), dim) - jnp.where(
        begin < 0, jnp.maximum(begin + whole, 0), begin
    )
    places = lax.div(behind, np.int32(step))
    taken = (behind >= 0) & (places * step == behind) & (places < count)
    chosen = jnp.take_along_axis(grad, jnp.where(taken, places, 0), dim, mode="clip")
    return jnp.where(taken, chosen, jnp.zeros((), grad.dtype))


@lowers(aten.select_scatter.default)
def select_scatter(self: jax.Array, src: jax.Array, dim: int, index: int) -> jax.Array:
    dim = one_dim(dim, self.ndim)
    _check_source(src, self.shape[:dim] + self.shape[dim + 1 :])
    src = jnp.expand_dims(cast(src, self.dtype), dim)
    return lax.dynamic_update_slice_in_dim(self, src, index % self.shape[dim], dim)


@lowers(aten.select_backward.default)
def select_backward(grad_output: jax.Array, input_sizes: Sequence[int], dim: int, index: int) -> jax.Array:
    dim = one_dim(dim, len(input_sizes))
    index = index % input_sizes[dim]
    # Not padded: gradients of several selections are added up, which XLA fuses only if each can be computed anywhere.
    here = lax.broadcasted_iota(np.int32, tuple(input_sizes), dim) == index
    return jnp.where(here, jnp.expand_dims(grad_output, dim), jnp.zeros((), grad_output.dtype))


def _on_diagonal(diagonal: jax.Array, rows: int, columns: int, offset: int) -> tuple[jax.Array, jax.Array]:
    """Return the last dimension spread along diagonals of matrices (arbitrary elsewhere), and where these diagonals
    are.
    """
    along = rows if offset >= 0 else columns
    padded = lax.pad(
        diagonal,
        jnp.zeros((), diagonal.dtype),
        [(0, 0, 0)] * (diagonal.ndim - 1) + [(0, along - diagonal.shape[-1], 0)],
    )
    row = lax.broadcasted_iota(np.int32, (rows, columns), 0)
    column = lax.broadcasted_iota(np.int32, (rows, columns), 1)
    return jnp.expand_dims(padded, -1 if offset >= 0 else -2), column - row == offset


def _written_diagonal(base: jax.Array, diagonal: jax.Array, offset: int, dim1: int, dim2: int) -> jax.Array:
    """Return `base` with the diagonals of its matrices, which span `dim1` and `dim2`, replaced."""
    dims = (one_dim(dim1, base.ndim), one_dim(dim2, base.ndim))
    matrices = jnp.moveaxis(base, dims, (-2, -1))
    values, written = _on_diagonal(cast(diagonal, base.dtype), matrices.shape[-2], matrices.shape[-1], offset)
    return jnp.moveaxis(jnp.where(written, values, matrices), (-2, -1), dims)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(self: jax.Array, src: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    return _written_diagonal(self, src, offset, dim1, dim2)


@lowers(aten.diagonal_backward.default)
def diagonal_backward(
    grad_output: jax.Array, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> jax.Array:
    return _written_diagonal(jnp.zeros(tuple(input_sizes), grad_output.dtype), grad_output, offset, dim1, dim2)


@lowers(aten.diag_embed.default)
def diag_embed(self: jax.Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> jax.Array:
    dims = (dim1 % (self.ndim + 1), dim2 % (self.ndim + 1))
    size = self.shape[-1] + abs(offset)
    values, written = _on_diagonal(self, size, size, offset)
    return jnp.moveaxis(jnp.where(written, values, number_as(0, self.dtype)), (-2, -1), dims)
