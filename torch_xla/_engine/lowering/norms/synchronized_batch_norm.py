"""Batch normalization in pieces, for batches spread over processes: statistics, their union, and what applies them.

Two of the operators also write running statistics, which their schemas do not say; a plain function beside each gives
the values to write.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..opmath import widened
from ..registry import lowers

aten = torch.ops.aten

_Optional = jax.Array | None


@lowers(aten.batch_norm_stats.default)
def batch_norm_stats(input: jax.Array, eps: float) -> tuple[jax.Array, jax.Array]:
    mean, variance = _moments(widened(input))
    return mean, _inverse_deviation(variance, eps)


def update_stats_with_statistics(
    input: jax.Array, running_mean: _Optional, running_var: _Optional, momentum: float
) -> tuple[jax.Array, jax.Array, _Optional, _Optional]:
    """Mean and variance of the batch, and the running statistics after `batch_norm_update_stats`."""
    operand = widened(input)
    mean, variance = _moments(operand)
    return mean, variance, *_moved(running_mean, running_var, mean, variance, _count(operand), momentum)


@lowers(aten.batch_norm_update_stats.default)
def batch_norm_update_stats(
    input: jax.Array, running_mean: _Optional, running_var: _Optional, momentum: float
) -> tuple[jax.Array, jax.Array]:
    mean, variance, _, _ = update_stats_with_statistics(input, running_mean, running_var, momentum)
    return mean, variance


def gather_stats_with_statistics(
    mean: jax.Array,
    invstd: jax.Array,
    running_mean: _Optional,
    running_var: _Optional,
    momentum: float,
    eps: float,
    counts: jax.Array,
) -> tuple[jax.Array, jax.Array, _Optional, _Optional]:
    """Mean and inverse deviation over all rows (one per process), and the running statistics afterwards."""
    means = widened(mean)
    weights = counts.astype(means.dtype).reshape(-1, 1)
    total = jnp.sum(weights)
    union = jnp.sum(means * weights, 0) / total
    squares = 1 / jnp.square(widened(invstd)) - eps + jnp.square(means - union)
    variance = jnp.sum(squares * weights, 0) / total
    moved = _moved(running_mean, running_var, union, variance, total, momentum)
    return union, _inverse_deviation(variance, eps), *moved


@lowers(aten.batch_norm_gather_stats_with_counts.default)
def batch_norm_gather_stats_with_counts(
    input: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    running_mean: _Optional,
    running_var: _Optional,
    momentum: float,
    eps: float,
    counts: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    statistics = gather_stats_with_statistics(mean, invstd, running_mean, running_var, momentum, eps, counts)
    return statistics[0], statistics[1]


@lowers(aten.batch_norm_gather_stats.default)
def batch_norm_gather_stats(
    input: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    running_mean: _Optional,
    running_var: _Optional,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[jax.Array, jax.Array]:
    counts = jnp.full(mean.shape[0], count, np.float32)
    return batch_norm_gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


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


def _count(operand: jax.Array) -> int:
    return operand.size // max(operand.shape[1], 1)


def _all_but_channels(operand: jax.Array) -> tuple[int, ...]:
    return (0, *range(2, operand.ndim))


def _per_channel(vector: jax.Array, operand: jax.Array) -> jax.Array:
    return vector.astype(operand.dtype).reshape(1, -1, *[1] * (operand.ndim - 2))


def _distance(operand: jax.Array, mean: jax.Array) -> jax.Array:
    return operand - _per_channel(mean, operand)


def _scale(operand: jax.Array, invstd: jax.Array, weight: _Optional) -> jax.Array:
    return _per_channel(widened(invstd) if weight is None else widened(invstd) * widened(weight), operand)


def _moments(operand: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance of every channel, in two passes."""
    mean = jnp.mean(operand, _all_but_channels(operand))
    return mean, jnp.mean(jnp.square(_distance(operand, mean)), _all_but_channels(operand))


def _inverse_deviation(variance: jax.Array, eps: float) -> jax.Array:
    return 1 / jnp.sqrt(variance + eps)


def _moved(
    running_mean: _Optional,
    running_var: _Optional,
    mean: jax.Array,
    variance: jax.Array,
    count: int | jax.Array,
    momentum: float,
) -> tuple[_Optional, _Optional]:
    """The running statistics, a step nearer to those of the batch: to its unbiased variance."""
    unbiased = variance * count / jnp.asarray(count - 1, variance.dtype)
    old_and_new = ((running_mean, mean), (running_var, unbiased))
    moved = [None if old is None else widened(old) * (1 - momentum) + new * momentum for old, new in old_and_new]
    return moved[0], moved[1]
