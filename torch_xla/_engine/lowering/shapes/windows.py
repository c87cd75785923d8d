"""Window functions, computed in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ... import dtypes
from ..machinery.registry import lowers
from .creation import default_dtype

aten = torch.ops.aten


def _phases(window_length: int, periodic: bool) -> jax.Array:
    """Return the position of each element in the window, from 0 to 1; a periodic window leaves out the last one."""
    intervals = window_length if periodic else window_length - 1
    return lax.iota(np.float64, window_length) / max(intervals, 1)


def _finished(window: jax.Array, dtype: torch.dtype | None) -> jax.Array:
    if window.size == 1:
        window = jnp.ones_like(window)
    return window.astype(default_dtype() if dtype is None else dtypes.to_jax(dtype))


@lowers(
    aten.hamming_window.default,
    aten.hamming_window.periodic,
    aten.hamming_window.periodic_alpha,
    aten.hamming_window.periodic_alpha_beta,
)
def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    return _finished(alpha - beta * lax.cos(2 * np.pi * _phases(window_length, periodic)), dtype)


@lowers(aten.hann_window.default, aten.hann_window.periodic)
def hann_window(window_length: int, periodic: bool = True, *, dtype: torch.dtype | None = None) -> jax.Array:
    return hamming_window(window_length, periodic, 0.5, 0.5, dtype=dtype)


@lowers(aten.blackman_window.default, aten.blackman_window.periodic)
def blackman_window(window_length: int, periodic: bool = True, *, dtype: torch.dtype | None = None) -> jax.Array:
    angle = 2 * np.pi * _phases(window_length, periodic)
    return _finished(0.42 - 0.5 * lax.cos(angle) + 0.08 * lax.cos(2 * angle), dtype)


@lowers(aten.bartlett_window.default, aten.bartlett_window.periodic)
def bartlett_window(window_length: int, periodic: bool = True, *, dtype: torch.dtype | None = None) -> jax.Array:
    return _finished(1 - lax.abs(2 * _phases(window_length, periodic) - 1), dtype)


@lowers(aten.kaiser_window.default, aten.kaiser_window.periodic, aten.kaiser_window.beta)
def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: torch.dtype | None = None
) -> jax.Array:
    distance = 2 * _phases(window_length, periodic) - 1
    argument = beta * lax.sqrt(jnp.maximum(1 - distance * distance, 0))
    # I0 without its exponential growth, which cancels up to the difference of the arguments.
    scaled = lax.bessel_i0e(argument) / lax.bessel_i0e(jnp.asarray(beta, np.float64))
    return _finished(lax.exp(argument - jnp.abs(beta)) * scaled, dtype)
