"""Discrete Fourier transforms over any dimensions, in PyTorch's three normalizations."""

import math

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..machinery.jax_sharding import in_order, whole_along
from ..machinery.registry import lowers

aten = torch.ops.aten

# XLA transforms at most this many dimensions at once, and only the last ones.
MOST_DIMS = 3

# How PyTorch numbers what a sum over n terms is divided by; its kernels take any other number for 2.
DIVISORS = {0: lambda n: 1.0, 1: lambda n: math.sqrt(n)}


def _scaled(result: jax.Array, length: int, normalization: int, divided: bool) -> jax.Array:
    """Return `result` normalized; `divided` if XLA has already divided it by the number of terms."""
    factor = (length if divided else 1.0) / DIVISORS.get(normalization, float)(max(length, 1))
    return result if factor == 1 else result * factor


def _transform(array: jax.Array, kind: lax.FftType, lengths: tuple[int, ...]) -> jax.Array:
    """Return the transform along the last dimensions, which XLA cannot divide among devices."""
    batch = array.shape[: array.ndim - len(lengths)]
    # XLA may choose any layout for dimensions of one element, but transforms only its default layout.
    array = array.reshape(*(size for size in batch if size != 1), *array.shape[len(batch) :])
    array = whole_along(array, range(array.ndim - len(lengths), array.ndim))
    result = in_order(lax.fft(in_order(array), kind, lengths))
    return result.reshape(*batch, *result.shape[result.ndim - len(lengths) :])


def _complex_transform(self: jax.Array, dims: list[int], forward: bool) -> jax.Array:
    """Return the transform over `dims`, divided by the number of terms if it is not `forward`."""
    if self.size == 0:
        return self
    dims = [dim for dim in dims if self.shape[dim] > 1]  # one element is its own transform
    for start in range(0, len(dims), MOST_DIMS):
        group = [dim % self.ndim for dim in dims[start : start + MOST_DIMS]]
        last = range(self.ndim - len(group), self.ndim)
        moved = jnp.moveaxis(self, group, last)
        kind = lax.FftType.FFT if forward else lax.FftType.IFFT
        moved = _transform(moved, kind, tuple(moved.shape[dim] for dim in last))
        self = jnp.moveaxis(moved, last, group)
    return self


def _length(shape: tuple[int, ...], dims: list[int]) -> int:
    return math.prod(shape[dim] for dim in dims)


@lowers(aten._fft_c2c.default)
def fft_c2c(self: jax.Array, dim: list[int], normalization: int, forward: bool) -> jax.Array:
    length = _length(self.shape, dim)
    return _scaled(_complex_transform(self, dim, forward), length, normalization, divided=not forward)


@lowers(aten._fft_r2c.default)
def fft_r2c(self: jax.Array, dim: list[int], normalization: int, onesided: bool) -> jax.Array:
    length, last = _length(self.shape, dim), dim[-1]
    if not onesided or self.size == 0 or self.shape[last] == 1:
        wide = self.astype(jnp.result_type(self.dtype, jnp.complex64))
        result = _complex_transform(wide, dim, forward=True)
        if onesided:
            result = lax.slice_in_dim(result, 0, self.shape[last] // 2 + 1, axis=last % self.ndim)
    else:
        # Half of the result along the last dimension: the other half is its conjugate.
        half = _transform(jnp.moveaxis(self, last, -1), lax.FftType.RFFT, (self.shape[last],))
        result = _complex_transform(jnp.moveaxis(half, -1, last), dim[:-1], forward=True)
    return _scaled(result, length, normalization, divided=False)


@lowers(aten._fft_c2r.default)
def fft_c2r(self: jax.Array, dim: list[int], normalization: int, last_dim_size: int) -> jax.Array:
    last = dim[-1]
    if self.size == 0:
        shape = list(self.shape)
        shape[last] = last_dim_size
        return jnp.zeros(shape, self.real.dtype)
    half = jnp.moveaxis(_complex_transform(self, dim[:-1], forward=False), last, -1)
    result = half[..., :1].real if last_dim_size == 1 else _transform(half, lax.FftType.IRFFT, (last_dim_size,))
    result = jnp.moveaxis(result, -1, last)
    return _scaled(result, _length(result.shape, dim), normalization, divided=True)
