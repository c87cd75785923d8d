"""Batch normalization in parts, for batches divided among processes: compute, combine and apply statistics.

Operators that also write running statistics are composed of other operators: `dispatch/ops/synchronized_batch_norm.py`.
"""

import jax
import jax.numpy as jnp
import torch

from ..machinery.opmath import is_float, widened
from ..machinery.registry import lowers

aten = torch.ops.aten

_Optional = jax.Array | None


@lowers(aten.batch_norm_stats.default)
def batch_norm_stats(input: jax.Array, eps: float) -> tuple[jax.Array, jax.Array]:
    if not is_float(input):
        raise NotImplementedError("no device of PyTorch has a kernel for these")
    mean, variance = _moments(widened(input))
    return mean, _inverse_deviation(variance, eps)


@lowers(aten.batch_norm_elemt.default)
def batch_norm_elemt(
    input: jax.Array, weight: _Optional, bias: _Optional, mean: jax.Array, invstd: jax.Array, eps: float
) -> jax.Array:
    operand = widened(input)
    result = _distance(operand, mean) * _scale(operand, invstd, weight)
    return result if bias is None else result + _per_channel(bias, operand)


@lowers(aten.batch_norm_backward_reduce.default)
def batch_norm_backward_reduce(
    grad_out: jax.Array,
    input: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    weight: _Optional,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[_Optional, ...]:
    grad = widened(grad_out)
    total = jnp.sum(grad, _all_but_channels(grad))
    product = jnp.sum(grad * _distance(widened(input), mean), _all_but_channels(grad))
    return (
        total if input_g else None,
        product if input_g else None,
        product * widened(invstd) if weight_g else None,
        total if bias_g else None,
    )


@lowers(aten.batch_norm_backward_elemt.default)
def batch_norm_backward_elemt(
    grad_out: jax.Array,
    input: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    weight: _Optional,
    sum_dy: jax.Array,
    sum_dy_xmu: jax.Array,
    count: jax.Array,
) -> jax.Array:
    grad, operand = widened(grad_out), widened(input)
    total = jnp.sum(count).astype(operand.dtype)
    slope = widened(sum_dy_xmu) / total * jnp.square(widened(invstd))
    centred = grad - _per_channel(widened(sum_dy) / total, operand)
    return (centred - _distance(operand, mean) * _per_channel(slope, operand)) * _scale(operand, invstd, weight)


def _all_but_channels(operand: jax.Array) -> tuple[int, ...]:
    return (0, *range(2, operand.ndim))


def _per_channel(vector: jax.Array, operand: jax.Array) -> jax.Array:
    return vector.astype(operand.dtype).reshape(1, -1, *[1] * (operand.ndim - 2))


def _distance(operand: jax.Array, mean: jax.Array) -> jax.Array:
    return operand - _per_channel(mean, operand)


def _scale(operand: jax.Array, invstd: jax.Array, weight: _Optional) -> jax.Array:
    return _per_channel(widened(invstd) if weight is None else widened(invstd) * widened(weight), operand)


def _moments(operand: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mean and biased variance of every channel, in two passes."""
    mean = jnp.mean(operand, _all_but_channels(operand))
    return mean, jnp.mean(jnp.square(_distance(operand, mean)), _all_but_channels(operand))


def _inverse_deviation(variance: jax.Array, eps: float) -> jax.Array:
    return 1 / jnp.sqrt(variance + eps)
