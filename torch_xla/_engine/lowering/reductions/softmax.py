"""Softmax and log-softmax, safe and masked, and their gradients, with sums in float32 or wider."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ... import dtypes
from ..machinery.dims import one_dim
from ..machinery.opmath import in_opmath, widened
from ..machinery.registry import lowers
from .reduction import sum_from_first

aten = torch.ops.aten


def _along(function: Callable[..., jax.Array], dim: int, *arrays: jax.Array) -> jax.Array:
    """Call `function(*arrays, dim)`, also for zero-dim arrays, which count as one element, and for empty ones."""
    dim = one_dim(dim, arrays[0].ndim)
    if arrays[0].size == 0:
        return arrays[0]
    if arrays[0].ndim == 0:
        return function(*(array.reshape(1) for array in arrays), 0).reshape(())
    return function(*arrays, dim)


def _normalize(self: jax.Array, dim: int) -> jax.Array:
    powers = lax.exp(self - jnp.max(self, axis=dim, keepdims=True))
    return powers / jnp.sum(powers, axis=dim, keepdims=True)


def _log_normalize(self: jax.Array, dim: int) -> jax.Array:
    shifted = self - jnp.max(self, axis=dim, keepdims=True)
    return shifted - lax.log(jnp.sum(lax.exp(shifted), axis=dim, keepdims=True))


def _normalize_backward(grad_output: jax.Array, output: jax.Array, dim: int) -> jax.Array:
    return (grad_output - _sum(grad_output * output, dim)) * output


def _log_normalize_backward(grad_output: jax.Array, output: jax.Array, dim: int) -> jax.Array:
    return grad_output - lax.exp(output) * _sum(grad_output, dim)


def _sum(terms: jax.Array, dim: int) -> jax.Array:
    """Return the sum of the gradient's terms as PyTorch's kernels: over the last dimension one of nothing but -0 is -0.

    They start with the first term there, and with 0 over other dimensions.
    """
    if dim != terms.ndim - 1:
        return jnp.sum(terms, axis=dim, keepdims=True)
    return jnp.expand_dims(sum_from_first(terms, (dim,)), dim)


@lowers(aten._softmax.default)
@in_opmath
def softmax(self: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    return _along(_normalize, dim, self)


@lowers(aten._log_softmax.default)
@in_opmath
def log_softmax(self: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    return _along(_log_normalize, dim, self)


@lowers(aten._softmax_backward_data.default)
@in_opmath
def softmax_backward(grad_output: jax.Array, output: jax.Array, dim: int, input_dtype: torch.dtype) -> jax.Array:
    return _along(_normalize_backward, dim, grad_output, output)


@lowers(aten._log_softmax_backward_data.default)
@in_opmath
def log_softmax_backward(grad_output: jax.Array, output: jax.Array, dim: int, input_dtype: torch.dtype) -> jax.Array:
    return _along(_log_normalize_backward, dim, grad_output, output)


@lowers(aten._safe_softmax.default)
def safe_softmax(self: jax.Array, dim: int, dtype: torch.dtype | None = None) -> jax.Array:
    """Compute a softmax in which a row of nothing but -inf gives zeros instead of NaN."""
    self = widened(self if dtype is None else self.astype(dtypes.to_jax(dtype)))
    if self.size == 0:
        return self
    hopeless = jnp.all(self == -np.inf, axis=dim if self.ndim else None, keepdims=True)
    return jnp.where(hopeless, 0, _along(_normalize, dim, self))


def _spread(mask: jax.Array, shape: tuple[int, ...], mask_type: int | None) -> jax.Array:
    """Return the mask in the shape of attention scores (batch, heads, length, length)."""
    if mask_type == 1:  # (batch, length): the keys that are padding
        mask = mask.reshape(shape[0], *(1,) * (len(shape) - 2), shape[-1])
    return jnp.broadcast_to(mask, shape)


@lowers(aten._masked_softmax.default)
@in_opmath
def masked_softmax(self: jax.Array, mask: jax.Array, dim: int | None = None, mask_type: int | None = None) -> jax.Array:
    """Compute the softmax of the elements that `mask` does not hide."""
    mask = _spread(mask, self.shape, mask_type)
    return _along(_normalize, -1 if dim is None else dim, jnp.where(mask, -np.inf, self))


@lowers(aten._masked_softmax_backward.default)
@in_opmath
def masked_softmax_backward(
    grad_output: jax.Array, output: jax.Array, mask: jax.Array, dim: int | None = None
) -> jax.Array:
    visible = jnp.where(mask.reshape(output.shape), 0, output)
    return _along(_normalize_backward, -1 if dim is None else dim, grad_output, visible)
