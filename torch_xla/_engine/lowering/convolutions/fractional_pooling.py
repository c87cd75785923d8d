"""Fractional max pooling: windows placed by random numbers."""

from collections.abc import Callable
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..machinery.opmath import widened
from ..machinery.registry import lowers
from .pooling import scatter_by_index

aten = torch.ops.aten


def _starts(sample: jax.Array, size: int, outputs: int, kernel: int) -> jax.Array:
    """Return the starts of each plane's windows, for one random number per plane; the last one ends with the image."""
    sample = widened(sample)[..., None]
    alpha = np.asarray((size - kernel) / max(outputs - 1, 1), sample.dtype)
    steps = jnp.arange(outputs, dtype=sample.dtype)
    starts = ((steps + sample) * alpha).astype(np.int64) - (sample * alpha).astype(np.int64)
    return jnp.where(jnp.arange(outputs) == outputs - 1, size - kernel, jnp.clip(starts, 0, size - kernel))


def _fractional_max_pool(dims: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    def lower(
        self: jax.Array, kernel_size: list[int], output_size: list[int], random_samples: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        size, lead = self.shape[-dims:], self.shape[:-dims]
        planes = prod(lead)
        # An image without a batch takes the samples of the first one.
        samples = random_samples.reshape(-1, dims)[:planes]
        # Flat indices of (plane, output of each dimension…, element of the window).
        index = jnp.zeros((planes, *(1,) * dims, 1), np.int64)
        for dim in range(dims):
            # In two dimensions PyTorch takes the first number for the width; in three, for the depth.
            sample = samples[:, dims - 1 - dim if dims == 2 else dim]
            starts = _starts(sample, size[dim], output_size[dim], kernel_size[dim])
            spread = [planes] + [output_size[dim] if d == dim else 1 for d in range(dims)] + [1]
            inner = prod(kernel_size[dim + 1 :])
            offsets = np.arange(prod(kernel_size)) // inner % kernel_size[dim]
            index = index * size[dim] + starts.reshape(spread) + offsets
        shape = (planes, *output_size, prod(kernel_size))
        flat = jnp.broadcast_to(index, shape).reshape(planes, prod(shape[1:]))
        shown = jnp.take_along_axis(self.reshape(planes, prod(size)), flat, 1).reshape(shape)
        is_nan = shown != shown
        # The first maximum wins, and the last NaN.
        last = shape[-1] - 1 - jnp.argmax(is_nan[..., ::-1], -1)
        chosen = jnp.where(jnp.any(is_nan, -1), last, jnp.argmax(shown, -1))[..., None]
        result = jnp.take_along_axis(shown, chosen, -1)
        places = jnp.take_along_axis(flat.reshape(shape), chosen, -1)
        return result.reshape(*lead, *output_size), places.reshape(*lead, *output_size)

    return lower


def _fractional_max_pool_backward(dims: int) -> Callable[..., jax.Array]:
    def lower(
        grad_output: jax.Array, self: jax.Array, kernel_size: list[int], output_size: list[int], indices: jax.Array
    ) -> jax.Array:
        return scatter_by_index(grad_output, self.shape, dims, indices)

    return lower


for _dims in (2, 3):
    lowers(getattr(aten, f"fractional_max_pool{_dims}d").default)(_fractional_max_pool(_dims))
    lowers(getattr(aten, f"fractional_max_pool{_dims}d_backward").default)(_fractional_max_pool_backward(_dims))
