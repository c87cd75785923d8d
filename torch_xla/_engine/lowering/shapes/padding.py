"""Reflection and replication padding. `constant_pad_nd` is in `shaping.py`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..machinery.opmath import widened
from ..machinery.registry import lowers

aten = torch.ops.aten


def _margins(ndim: int, padding: list[int]) -> list[tuple[int, int]]:
    """Return low and high margins of every dimension; PyTorch lists them from the last dimension on."""
    margins = [(0, 0)] * ndim
    for i in range(len(padding) // 2):
        margins[ndim - 1 - i] = (padding[2 * i], padding[2 * i + 1])
    return margins


def _padded(x: jax.Array, padding: list[int], mode: str) -> jax.Array:
    for dim, (low, high) in enumerate(_margins(x.ndim, padding)):
        size = x.shape[dim]
        if low > 0 or high > 0:
            margins = [(0, 0)] * x.ndim
            margins[dim] = (max(low, 0), max(high, 0))
            x = jnp.pad(x, margins, mode=mode)
        if low < 0 or high < 0:
            # Negative margins crop, and what is cropped away on one side may show in the margin of the other. They
            # are cut and not looked up: XLA's partitioner cannot divide the sum over places that would be the gradient.
            begin = max(-low, 0)
            x = jax.lax.slice_in_dim(x, begin, begin + size + low + high, axis=dim)
    return x


def _forward(mode: str) -> Callable[[jax.Array, list[int]], jax.Array]:
    def lower(self: jax.Array, padding: list[int]) -> jax.Array:
        return _padded(self, padding, mode)

    return lower


def _backward(mode: str) -> Callable[[jax.Array, jax.Array, list[int]], jax.Array]:
    def lower(grad_output: jax.Array, self: jax.Array, padding: list[int]) -> jax.Array:
        gradient = widened(grad_output)
        like = jax.ShapeDtypeStruct(self.shape, np.dtype(gradient.dtype))
        (result,) = jax.linear_transpose(lambda x: _padded(x, padding, mode), like)(gradient)
        return result + 0.0  # the CPU adds to zeros

    return lower


for _dims in (1, 2, 3):
    lowers(getattr(aten, f"reflection_pad{_dims}d").default)(_forward("reflect"))
    lowers(getattr(aten, f"replication_pad{_dims}d").default)(_forward("edge"))
    lowers(getattr(aten, f"reflection_pad{_dims}d_backward").default)(_backward("reflect"))
    lowers(getattr(aten, f"replication_pad{_dims}d_backward").default)(_backward("edge"))
