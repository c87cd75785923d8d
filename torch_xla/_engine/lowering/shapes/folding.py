"""Images and their patches: unfold, fold, and trade channels for pixels."""

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.dims import module_for, one_dim
from ..machinery.jax_sharding import spaced, zero_behind_ends
from ..machinery.opmath import widened
from ..machinery.registry import lowers

aten = torch.ops.aten

# Up to this many overlapping pieces are added one by one; more of them by one scatter, slower but one operation.
_FEW = 16


def _windows(size: int, kernel: int, dilation: int, padding: int, stride: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _window_places(count: int, kernel: int, dilation: int, stride: int) -> np.ndarray:
    """Return the place in the padded dimension of each element of each window: kernel × count."""
    return np.arange(kernel)[:, None] * dilation + module_for(count).arange(count)[None, :] * stride


def _cut(operand: jax.Array, dim: int, kernel: int, dilation: int, padding: int, stride: int) -> jax.Array:
    """Return dimension `dim` of an image replaced by two: the place in the window, and the window."""
    count = _windows(operand.shape[dim], kernel, dilation, padding, stride)
    if kernel == stride and dilation == 1 and padding == 0:
        operand = lax.slice_in_dim(operand, 0, count * kernel, axis=dim)
        parts = operand.reshape(operand.shape[:dim] + (count, kernel) + operand.shape[dim + 1 :])
        return jnp.swapaxes(parts, dim, dim + 1)
    pad = [(padding, padding, 0) if d == dim else (0, 0, 0) for d in range(operand.ndim)]
    padded = lax.pad(operand, jnp.zeros((), operand.dtype), pad)
    return jnp.take(padded, _window_places(count, kernel, dilation, stride), dim, mode="clip")


def _overlay(windows: jax.Array, dim: int, size: int, dilation: int, padding: int, stride: int) -> jax.Array:
    """Return the reverse of `_cut`, with what overlaps summed up: dimensions `dim` and the next become one of
    `size`.
    """
    kernel, count = windows.shape[dim : dim + 2]
    rest = windows.shape[:dim], windows.shape[dim + 2 :]
    full = size + 2 * padding
    if kernel == stride and dilation == 1:
        flat = jnp.swapaxes(windows, dim, dim + 1).reshape((*rest[0], count * kernel, *rest[1]))
        pad = [(0, full - count * kernel, 0) if d == dim else (0, 0, 0) for d in range(flat.ndim)]
        result = lax.pad(flat, jnp.zeros((), flat.dtype), pad)
    elif kernel <= _FEW:
        result = jnp.zeros((*rest[0], full, *rest[1]), windows.dtype)
        for place in range(kernel):
            start = place * dilation
            pad = [(0, 0, 0)] * result.ndim
            pad[dim] = (start, full - start - (count - 1) * stride - 1, stride - 1)
            result = result + spaced(lax.index_in_dim(windows, place, dim, False), jnp.zeros((), windows.dtype), pad)
    else:
        flat = windows.reshape((*rest[0], kernel * count, *rest[1]))
        places = _window_places(count, kernel, dilation, stride).reshape(-1)
        target = jnp.zeros((*rest[0], full, *rest[1]), windows.dtype)
        result = target.at[(slice(None),) * dim + (places,)].add(zero_behind_ends(flat), mode="promise_in_bounds")
    return lax.slice_in_dim(result, padding, padding + size, axis=dim)


@lowers(aten.im2col.default)
def im2col(
    self: jax.Array,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> jax.Array:
    image = self if self.ndim == 4 else self[None]
    patches = _cut(image, 2, kernel_size[0], dilation[0], padding[0], stride[0])
    patches = _cut(patches, 4, kernel_size[1], dilation[1], padding[1], stride[1])
    batch, channels, height, rows, width, columns = patches.shape
    patches = patches.transpose(0, 1, 2, 4, 3, 5).reshape(batch, channels * height * width, rows * columns)
    return patches if self.ndim == 4 else patches[0]


@lowers(aten.col2im.default)
def col2im(
    self: jax.Array,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> jax.Array:
    columns = widened(self if self.ndim == 3 else self[None])
    axes = zip(output_size, kernel_size, dilation, padding, stride, strict=True)
    counts = [_windows(*axis) for axis in axes]
    patches = columns.reshape(columns.shape[0], columns.shape[1] // prod(kernel_size), *kernel_size, *counts).transpose(
        0, 1, 2, 4, 3, 5
    )
    image = _overlay(patches, 4, output_size[1], dilation[1], padding[1], stride[1])
    image = _overlay(image, 2, output_size[0], dilation[0], padding[0], stride[0])
    return image if self.ndim == 3 else image[0]


@lowers(aten.unfold_backward.default)
def unfold_backward(grad_in: jax.Array, input_sizes: Sequence[int], dim: int, size: int, step: int) -> jax.Array:
    if not input_sizes:
        return grad_in.reshape(())
    # The elements of the windows are in the last dimension; `_overlay` needs them before the windows.
    dim = one_dim(dim, len(input_sizes))
    windows = jnp.moveaxis(widened(grad_in), -1, dim)
    return _overlay(windows, dim, input_sizes[dim], 1, 0, step)


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(self: jax.Array, upscale_factor: int) -> jax.Array:
    *batch, channels, height, width = self.shape
    factor = upscale_factor
    pixels = self.reshape(*batch, channels // factor**2, factor, factor, height, width)
    first = len(batch)
    order = (*range(first + 1), first + 3, first + 1, first + 4, first + 2)
    return pixels.transpose(order).reshape(*batch, channels // factor**2, height * factor, width * factor)


@lowers(aten.pixel_unshuffle.default)
def pixel_unshuffle(self: jax.Array, downscale_factor: int) -> jax.Array:
    *batch, channels, height, width = self.shape
    factor = downscale_factor
    pixels = self.reshape(*batch, channels, height // factor, factor, width // factor, factor)
    first = len(batch)
    order = (*range(first + 1), first + 2, first + 4, first + 1, first + 3)
    return pixels.transpose(order).reshape(*batch, channels * factor**2, height // factor, width // factor)


@lowers(aten.channel_shuffle.default)
def channel_shuffle(self: jax.Array, groups: int) -> jax.Array:
    batch, channels, *image = self.shape
    return jnp.swapaxes(self.reshape(batch, groups, channels // groups, *image), 1, 2).reshape(self.shape)
