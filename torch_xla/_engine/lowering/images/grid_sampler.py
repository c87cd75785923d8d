"""Sample images at the points of a grid, and the gradients by image and grid, in two and three dimensions.

A sample is a weighted sum of pixels near its point. Each dimension names its pixels and weights; samples read, and
gradients write, all combinations of them. Pixels are gathered with all their channels at once.
"""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.jax_sharding import zero_behind_ends
from ..machinery.opmath import widened
from ..machinery.registry import lowers

aten = torch.ops.aten

_LINEAR, _NEAREST, _CUBIC = range(3)  # PyTorch's numbers for `interpolation_mode`
_ZEROS, _BORDER, _REFLECTION = range(3)  # and for `padding_mode`
_SHARPNESS = -0.75  # the free parameter of the cubic kernel, as PyTorch has it


class _Pixel(NamedTuple):
    """In one dimension: a place (a whole float, perhaps out of range), its weight, and the weight's slope."""

    place: jax.Array
    weight: jax.Array
    slope: jax.Array


@lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(
    input: jax.Array, grid: jax.Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> jax.Array:
    image, points = widened(input), widened(grid)
    batch, channels, *extent = image.shape
    shape = (batch, channels, *grid.shape[1:-1])
    if 0 in shape:
        return jnp.zeros(shape, image.dtype)
    pixels = image.reshape(batch, channels, -1).swapaxes(1, 2)
    samples = jnp.zeros((), image.dtype)
    for combination in product(*_pixels(points, extent, interpolation_mode, padding_mode, align_corners)):
        places, inside = _places(combination, extent)
        weight = prod((pixel.weight for pixel in combination[1:]), start=combination[0].weight)
        samples = samples + _read(pixels, places, inside) * weight[:, :, None]
    return samples.swapaxes(1, 2).reshape(shape)


@lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    grad_output: jax.Array,
    input: jax.Array,
    grid: jax.Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[jax.Array | None, jax.Array]:
    """Return both gradients: PyTorch's CPU kernels give that by the grid whether it is asked for or not."""
    image, points = widened(input), widened(grid)
    batch, channels, *extent = image.shape
    if 0 in grad_output.shape:
        return jnp.zeros_like(image) if output_mask[0] else None, jnp.zeros_like(points)
    grad = widened(grad_output).reshape(batch, channels, -1).swapaxes(1, 2)
    pixels = image.reshape(batch, channels, -1).swapaxes(1, 2)
    dims = _pixels(points, extent, interpolation_mode, padding_mode, align_corners)
    slopes = [jnp.zeros(grad.shape[:2], image.dtype) for _ in extent]
    written = jnp.zeros(pixels.shape, image.dtype)
    samples = np.arange(batch)[:, None]
    for combination in product(*dims):
        places, inside = _places(combination, extent)
        if output_mask[0]:
            weight = prod((pixel.weight for pixel in combination[1:]), start=combination[0].weight)
            update = jnp.where(inside[:, :, None], grad * weight[:, :, None], 0)
            written = written.at[samples, places].add(zero_behind_ends(update))
        if interpolation_mode != _NEAREST:
            share = jnp.sum(grad * _read(pixels, places, inside), 2)
            for dim, own in enumerate(combination):
                others = (pixel.weight for other, pixel in enumerate(combination) if other != dim)
                slopes[dim] = slopes[dim] + prod(others, start=share * own.slope)
    grad_input = written.swapaxes(1, 2).reshape(image.shape) if output_mask[0] else None
    # The last dimension of a grid counts dimensions from the last.
    return grad_input, jnp.stack(slopes[::-1], -1).reshape(grid.shape)


def _places(combination: tuple[_Pixel, ...], extent: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Return the flat index of a pixel, and whether there is such a pixel; if not, of some other one."""
    places: jax.Array | None = None
    inside: jax.Array | None = None
    for pixel, size in zip(combination, extent, strict=True):
        # A comparison with what is not a number is false.
        here = (pixel.place >= 0) & (pixel.place <= size - 1)
        index = jnp.where(here, pixel.place, 0).astype(np.int32)
        places = index if places is None else places * size + index
        inside = here if inside is None else inside & here
    assert places is not None and inside is not None
    return places, inside


def _read(pixels: jax.Array, places: jax.Array, inside: jax.Array) -> jax.Array:
    """Return the channels of pixels `[batch, point, channel]`; zeros outside of the image."""
    dims = lax.GatherDimensionNumbers((2,), (1,), (1,), (0,), (0,))
    read = lax.gather(pixels, places[:, :, None], dims, (1, 1, pixels.shape[2]), mode="promise_in_bounds")
    return jnp.where(inside[:, :, None], read, 0)


def _pixels(
    points: jax.Array, extent: Sequence[int], interpolation_mode: int, padding_mode: int, align_corners: bool
) -> list[list[_Pixel]]:
    """Return for each dimension, the pixels that make up a sample; slopes are those by the grid."""
    dims = []
    for dim, size in enumerate(extent):
        coordinate = points[..., len(extent) - 1 - dim].reshape(points.shape[0], -1)
        if align_corners:
            position, stretch = (coordinate + 1) / 2 * (size - 1), (size - 1) / 2
        else:
            position, stretch = ((coordinate + 1) * size - 1) / 2, size / 2
        if interpolation_mode == _CUBIC:
            dims.append(_cubic(position, stretch, size, padding_mode, align_corners))
            continue
        position, turn = _bounded(position, size, padding_mode, align_corners)
        if interpolation_mode == _NEAREST:
            one = jnp.ones_like(position)
            dims.append([_Pixel(lax.round(position, lax.RoundingMethod.TO_NEAREST_EVEN), one, one)])
        else:
            low, slope = jnp.floor(position), turn * stretch
            part = position - low
            dims.append([_Pixel(low, 1 - part, -slope), _Pixel(low + 1, part, slope)])
    return dims


def _cubic(position: jax.Array, stretch: float, size: int, padding_mode: int, align_corners: bool) -> list[_Pixel]:
    low = jnp.floor(position)
    part = position - low
    pixels = []
    for offset in range(-1, 3):
        index, _ = _bounded(low + offset, size, padding_mode, align_corners)
        toward = 1 if offset <= 0 else -1  # the sign of the distance's slope
        distance = part - offset if offset <= 0 else offset - part
        a = _SHARPNESS
        if offset in (0, 1):
            weight = ((a + 2) * distance - (a + 3)) * distance * distance + 1
            slope = (3 * (a + 2) * distance - 2 * (a + 3)) * distance
        else:
            weight = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
            slope = (3 * a * distance - 10 * a) * distance + 8 * a
        pixels.append(_Pixel(index, weight, slope * (toward * stretch)))
    return pixels


def _bounded(position: jax.Array, size: int, padding_mode: int, align_corners: bool) -> tuple[jax.Array, jax.Array]:
    """Return the position after padding (what is not a number becomes the first pixel), and the slope of that."""
    turn = jnp.ones_like(position)
    if padding_mode not in (_BORDER, _REFLECTION):
        return position, turn
    if padding_mode == _REFLECTION:
        position, turn = _reflected(position, size, align_corners)
    within = (position > 0) & (position < size - 1)
    clipped = jnp.where(position > 0, jnp.minimum(position, size - 1), 0)
    return clipped, jnp.where(within, turn, 0)


def _reflected(position: jax.Array, size: int, align_corners: bool) -> tuple[jax.Array, jax.Array]:
    """Reflect at the centres of the outermost pixels (`align_corners`) or at their outer edges."""
    edge, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if span == 0:
        return jnp.zeros_like(position), jnp.zeros_like(position)
    distance = jnp.abs(position - edge)
    around = distance - jnp.floor(distance / (2 * span)) * (2 * span)
    returning = around > span
    turn = jnp.where((position < edge) != returning, -1, 1).astype(position.dtype)
    return jnp.where(returning, 2 * span - around, around) + edge, turn
