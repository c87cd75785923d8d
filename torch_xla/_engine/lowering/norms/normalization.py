"""Layer, group, batch and RMS norm, forward and backward. Statistics of narrow floats are float32."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..machinery.opmath import widened
from ..machinery.registry import lowers

aten = torch.ops.aten

Optional = jax.Array | None


def _moments(x: jax.Array, dims: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Return mean and biased variance over `dims`, which stay as dimensions of size 1. Two passes, which XLA fuses."""
    mean = jnp.mean(x, dims, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), dims, keepdims=True)


def _affine(x: jax.Array, weight: Optional, bias: Optional, shape: Sequence[int]) -> jax.Array:
    if weight is not None:
        x = x * widened(weight).reshape(shape)
    return x if bias is None else x + widened(bias).reshape(shape)


def _input_gradient(gradient: jax.Array, normalized: jax.Array, invstd: jax.Array, dims: tuple[int, ...]) -> jax.Array:
    """Return the gradient through (x - mean) · invstd, of a gradient with the weight multiplied in."""
    mean = jnp.mean(gradient, dims, keepdims=True)
    along = jnp.mean(gradient * normalized, dims, keepdims=True)
    return invstd * (gradient - mean - normalized * along)


@lowers(aten.native_layer_norm.default)
def native_layer_norm(
    input: jax.Array, normalized_shape: list[int], weight: Optional, bias: Optional, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    dims = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    x = widened(input)
    mean, variance = _moments(x, dims)
    rstd = lax.rsqrt(variance + eps)
    return _affine((x - mean) * rstd, weight, bias, normalized_shape), mean, rstd


@lowers(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    normalized_shape: list[int],
    mean: jax.Array,
    rstd: jax.Array,
    weight: Optional,
    bias: Optional,
    output_mask: list[bool],
) -> tuple[Optional, Optional, Optional]:
    inner = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    outer = tuple(range(input.ndim - len(normalized_shape)))
    gradient, rstd = widened(grad_out), widened(rstd)
    normalized = (widened(input) - widened(mean)) * rstd
    weighted = gradient if weight is None else gradient * widened(weight)
    return (
        _input_gradient(weighted, normalized, rstd, inner) if output_mask[0] else None,
        jnp.sum(gradient * normalized, outer) if output_mask[1] and weight is not None else None,
        jnp.sum(gradient, outer) if output_mask[2] and bias is not None else None,
    )


@lowers(aten._fused_rms_norm.default)
def fused_rms_norm(
    input: jax.Array, normalized_shape: list[int], weight: Optional, eps: float | None
) -> tuple[jax.Array, jax.Array]:
    dims = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    x = widened(input)
    smallest = jnp.finfo(x.dtype).eps if eps is None else eps
    rstd = lax.rsqrt(jnp.mean(jnp.square(x), dims, keepdims=True) + smallest)
    return _affine(x * rstd, weight, None, normalized_shape), rstd


@lowers(aten._fused_rms_norm_backward.default)
def fused_rms_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    normalized_shape: list[int],
    rstd: jax.Array,
    weight: Optional,
    output_mask: list[bool],
) -> tuple[Optional, Optional]:
    inner = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    outer = tuple(range(input.ndim - len(normalized_shape)))
    gradient, rstd = widened(grad_out), widened(rstd)
    normalized = widened(input) * rstd
    weighted = gradient if weight is None else gradient * widened(weight)
    along = jnp.mean(weighted * normalized, inner, keepdims=True)
    grad_weight = gradient * normalized
    return (
        rstd * (weighted - normalized * along) if output_mask[0] else None,
        (jnp.sum(grad_weight, outer) if outer else grad_weight) if output_mask[1] and weight is not None else None,
    )


@lowers(aten.native_group_norm.default)
def native_group_norm(
    input: jax.Array, weight: Optional, bias: Optional, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x = widened(input).reshape(N, group, C // group, HxW)
    mean, variance = _moments(x, (2, 3))
    rstd = lax.rsqrt(variance + eps)
    normalized = ((x - mean) * rstd).reshape(N, C, HxW)
    return (
        _affine(normalized, weight, bias, (C, 1)).reshape(input.shape),
        mean.reshape(N, group),
        rstd.reshape(N, group),
    )


@lowers(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    mean: jax.Array,
    rstd: jax.Array,
    weight: Optional,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: list[bool],
) -> tuple[Optional, Optional, Optional]:
    grouped = (N, group, C // group, HxW)
    statistics = (N, group, 1, 1)
    gradient, invstd = widened(grad_out).reshape(N, C, HxW), widened(rstd).reshape(statistics)
    normalized = (widened(input).reshape(grouped) - widened(mean).reshape(statistics)) * invstd
    weighted = gradient if weight is None else gradient * widened(weight).reshape(C, 1)
    per_channel = normalized.reshape(N, C, HxW)
    return (
        _input_gradient(weighted.reshape(grouped), normalized, invstd, (2, 3)).reshape(input.shape)
        if output_mask[0]
        else None,
        jnp.sum(gradient * per_channel, (0, 2)) if output_mask[1] else None,
        jnp.sum(gradient, (0, 2)) if output_mask[2] else None,
    )


def _channel_shape(x: jax.Array) -> tuple[int, ...]:
    return (1, x.shape[1], *(1,) * (x.ndim - 2))


def _all_but_channels(x: jax.Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _with_batch_statistics(
    input: jax.Array, weight: Optional, bias: Optional, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return output, mean, variance and inverse deviation of the batch."""
    x, shape = widened(input), _channel_shape(input)
    mean, variance = _moments(x, _all_but_channels(input))
    invstd = lax.rsqrt(variance + eps)
    output = _shifted(_affine((x - mean) * invstd, weight, None, shape), bias, shape)
    return output, mean.reshape(-1), variance.reshape(-1), invstd.reshape(-1)


def _with_running_statistics(
    input: jax.Array, weight: Optional, bias: Optional, mean: jax.Array, var: jax.Array, eps: float
) -> jax.Array:
    shape = _channel_shape(input)
    scale = lax.rsqrt(widened(var) + eps)
    if weight is not None:
        scale = scale * widened(weight)
    return _shifted((widened(input) - widened(mean).reshape(shape)) * scale.reshape(shape), bias, shape)


def _shifted(x: jax.Array, bias: Optional, shape: Sequence[int]) -> jax.Array:
    """Return x + bias. The CPU adds a bias of 0 where there is none, so that no result is -0."""
    return x + 0.0 if bias is None else x + widened(bias).reshape(shape)


@lowers(aten._native_batch_norm_legit_functional.default)
def batch_norm_with_statistics(
    input: jax.Array,
    weight: Optional,
    bias: Optional,
    running_mean: jax.Array,
    running_var: jax.Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[jax.Array, ...]:
    if not training:
        output = _with_running_statistics(input, weight, bias, running_mean, running_var, eps)
        return output, running_mean, lax.rsqrt(widened(running_var) + eps), running_mean, running_var
    output, mean, variance, invstd = _with_batch_statistics(input, weight, bias, eps)
    count = input.size // max(input.shape[1], 1)
    # The running variance is the unbiased one, the one that normalizes is not.
    unbiased = variance * (count / max(count - 1, 1))
    return (
        output,
        mean,
        invstd,
        widened(running_mean) * (1 - momentum) + mean * momentum,
        widened(running_var) * (1 - momentum) + unbiased * momentum,
    )


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_statistics(
    input: jax.Array, weight: Optional, bias: Optional, training: bool, momentum: float, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    output, mean, _, invstd = _with_batch_statistics(input, weight, bias, eps)
    return output, mean, invstd


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_in_inference(
    input: jax.Array,
    weight: Optional,
    bias: Optional,
    running_mean: jax.Array,
    running_var: jax.Array,
    momentum: float,
    eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    output = _with_running_statistics(input, weight, bias, running_mean, running_var, eps)
    return output, running_mean, lax.rsqrt(widened(running_var) + eps)


@lowers(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    weight: Optional,
    running_mean: Optional,
    running_var: Optional,
    save_mean: Optional,
    save_invstd: Optional,
    train: bool,
    eps: float,
    output_mask: list[bool],
) -> tuple[Optional, Optional, Optional]:
    shape, dims = _channel_shape(input), _all_but_channels(input)
    gradient, x = widened(grad_out), widened(input)
    if train:
        assert save_mean is not None and save_invstd is not None
        mean, invstd = widened(save_mean).reshape(shape), widened(save_invstd).reshape(shape)
    else:
        assert running_mean is not None and running_var is not None
        mean = widened(running_mean).reshape(shape)
        invstd = lax.rsqrt(widened(running_var) + eps).reshape(shape)
    # In the order of the CPU's kernel, so that zeros have its signs.
    centered = x - mean
    along = centered * gradient
    grad_input = gradient
    if train:
        slope = jnp.mean(along, dims, keepdims=True) * invstd * invstd
        grad_input = gradient - jnp.mean(gradient, dims, keepdims=True) - centered * slope
    return (
        _affine(grad_input * invstd, weight, None, shape) if output_mask[0] else None,
        jnp.sum(along, dims) * invstd.reshape(-1) if output_mask[1] else None,
        jnp.sum(gradient, dims) if output_mask[2] else None,
    )
