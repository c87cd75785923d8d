"""Join tensors and move elements: concatenate, pad, roll, flip, repeat."""

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.dims import one_dim
from ..machinery.opmath import number_as
from ..machinery.registry import Promotion, lowers

aten = torch.ops.aten


@lowers(aten.cat.default, promotion=Promotion.COMMON)
def cat(tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    # A vector without elements goes with tensors of any number of dimensions, and adds only its dtype.
    kept = [tensor for tensor in tensors if tensor.shape != (0,)]
    if not kept:
        return tensors[0]
    return lax.concatenate(kept, one_dim(dim, kept[0].ndim)) if len(kept) > 1 else kept[0]


@lowers(aten.stack.default, aten._stack.default, promotion=Promotion.COMMON)
def stack(tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    dim = dim % (tensors[0].ndim + 1)
    return lax.concatenate([lax.expand_dims(tensor, (dim,)) for tensor in tensors], dim)


@lowers(aten._chunk_cat.default, promotion=Promotion.COMMON)
def chunk_cat(tensors: Sequence[jax.Array], dim: int, num_chunks: int) -> jax.Array:
    # Each tensor is padded to a multiple of num_chunks and cut; the n-th pieces of all are laid out flat, side by side.
    dim = one_dim(dim, tensors[0].ndim)
    pieces = []
    for tensor in tensors:
        size = -(-tensor.shape[dim] // num_chunks) * num_chunks
        padding = [(0, size - tensor.shape[dim], 0) if d == dim else (0, 0, 0) for d in range(tensor.ndim)]
        padded = lax.pad(tensor, number_as(0, tensor.dtype), padding)
        rest = size // num_chunks * prod(padded.shape[dim + 1 :])
        pieces.append(padded.reshape(tensor.shape[:dim] + (num_chunks, rest)))
    return lax.concatenate(pieces, dim + 1)


@lowers(aten.block_diag.default, promotion=Promotion.COMMON)
def block_diag(tensors: Sequence[jax.Array]) -> jax.Array:
    blocks = [tensor.reshape((1,) * (2 - tensor.ndim) + tensor.shape) for tensor in tensors]
    width, left, rows = sum(block.shape[1] for block in blocks), 0, []
    for block in blocks:
        padding = [(0, 0, 0), (left, width - left - block.shape[1], 0)]
        rows.append(lax.pad(block, number_as(0, block.dtype), padding))
        left += block.shape[1]
    return lax.concatenate(rows, 0)


@lowers(aten.roll.default)
def roll(self: jax.Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> jax.Array:
    if not self.size:
        return self
    if not dims:
        return roll(self.reshape(-1), shifts, [0]).reshape(self.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = self.shape[dim]
        if shift % size:
            split = size - shift % size
            parts = [lax.slice_in_dim(self, split, size, axis=dim), lax.slice_in_dim(self, 0, split, axis=dim)]
            self = lax.concatenate(parts, dim % self.ndim)
    return self


@lowers(aten.flip.default)
def flip(self: jax.Array, dims: Sequence[int]) -> jax.Array:
    return lax.rev(self, [dim % self.ndim for dim in dims]) if self.ndim else self


@lowers(aten.rot90.default)
def rot90(self: jax.Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> jax.Array:
    return jnp.rot90(self, k, (dims[0], dims[1]))


@lowers(aten.repeat.default)
def repeat(self: jax.Array, repeats: Sequence[int]) -> jax.Array:
    return jnp.tile(self.reshape((1,) * (len(repeats) - self.ndim) + self.shape), tuple(repeats))


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(self: jax.Array, pad: Sequence[int], value: jax.Array | complex = 0) -> jax.Array:
    # The amounts are listed from the last dimension on; negative ones cut.
    padding = [(0, 0, 0)] * self.ndim
    for place in range(len(pad) // 2):
        padding[-1 - place] = (pad[2 * place], pad[2 * place + 1], 0)
    return lax.pad(self, jnp.asarray(number_as(value, self.dtype)), padding)


def _below_diagonal(self: jax.Array, diagonal: int | jax.Array) -> jax.Array:
    """Return which elements of the matrices in `self` are on the diagonal or below it."""
    # Places have 32 bits; a diagonal beyond the corners, which may be any number, shows all or nothing.
    rows, columns = self.shape[-2:]
    offset = jnp.clip(diagonal, -rows, columns).astype(np.int32)
    row = lax.broadcasted_iota(np.int32, self.shape[-2:], 0)
    column = lax.broadcasted_iota(np.int32, self.shape[-2:], 1)
    return column <= row + offset


@lowers(aten.tril.default)
def tril(self: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.where(_below_diagonal(self, diagonal), self, jnp.zeros((), self.dtype))


@lowers(aten.triu.default)
def triu(self: jax.Array, diagonal: int = 0) -> jax.Array:
    above = jnp.maximum(diagonal, -self.shape[-2]) - 1
    return jnp.where(_below_diagonal(self, above), jnp.zeros((), self.dtype), self)
