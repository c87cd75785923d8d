"""Affine quantisation: `round(x / scale) + zero_point`, and back.

PyTorch defines these operators when `torch.ao.quantization` is imported, as compositions that read scales on the host;
here each is one operation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ... import dtypes
from ..machinery.registry import lowers_named

_SPACE = "quantized_decomposed"


def _along(axis: int, array: jax.Array, ndim: int) -> jax.Array:
    shape = [1] * ndim
    shape[axis] = array.shape[0]
    return array.reshape(shape)


def _rounded(
    x: jax.Array, inverse: jax.Array | float, zero_point: jax.Array | int, low: int, high: int, dtype: torch.dtype
) -> jax.Array:
    found = jnp.round(x.astype(np.float32) * inverse) + zero_point
    return jnp.clip(found, low, high).astype(dtypes.to_jax(dtype))


@lowers_named(f"{_SPACE}::quantize_per_tensor")
def quantize_per_tensor(
    x: jax.Array, scale: object, zero_point: jax.Array | int, low: int, high: int, dtype: torch.dtype
) -> jax.Array:
    """Use one scale for all elements."""
    inverse = jnp.asarray(1.0 / jnp.asarray(scale, np.float64)).astype(np.float32)
    return _rounded(x, inverse, zero_point, low, high, dtype)


@lowers_named(f"{_SPACE}::quantize_per_tensor.tensor", f"{_SPACE}::quantize_per_tensor.tensor2")
def quantize_by_tensors(
    x: jax.Array, scale: jax.Array, zero_point: jax.Array, low: int, high: int, dtype: torch.dtype
) -> jax.Array:
    """Use one scale for all elements, known to the device alone."""
    low, high = (each.reshape(()) if isinstance(each, jax.Array) else each for each in (low, high))
    return quantize_per_tensor(x, scale.reshape(()), zero_point.reshape(()).astype(np.float32), low, high, dtype)


@lowers_named(f"{_SPACE}::dequantize_per_tensor")
def dequantize_per_tensor(
    x: jax.Array,
    scale: jax.Array | float,
    zero_point: jax.Array | int,
    low: object,
    high: object,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> jax.Array:
    """Use one scale for all elements."""
    wide = dtypes.to_jax(out_dtype or torch.float32)
    return (x.astype(wide) - jnp.asarray(zero_point, wide)) * jnp.asarray(scale).astype(wide)


@lowers_named(f"{_SPACE}::dequantize_per_tensor.tensor", f"{_SPACE}::dequantize_per_tensor.tensor2")
def dequantize_by_tensors(
    x: jax.Array, scale: jax.Array, zero_point: jax.Array, low: int, high: int, dtype: torch.dtype, *,
    out_dtype: torch.dtype | None = None,
) -> jax.Array:  # fmt: skip
    """Use one scale for all elements, known to the device alone."""
    return dequantize_per_tensor(x, scale.reshape(()), zero_point.reshape(()), low, high, dtype, out_dtype=out_dtype)


@lowers_named(f"{_SPACE}::quantize_per_channel")
def quantize_per_channel(
    x: jax.Array, scales: jax.Array, zero_points: jax.Array, axis: int, low: int, high: int, dtype: torch.dtype
) -> jax.Array:
    """Use a scale for each slice along a dimension."""
    inverse, zero = (_along(axis, each, x.ndim) for each in (1.0 / scales, zero_points))
    return _rounded(x, inverse, zero, low, high, dtype)


@lowers_named(f"{_SPACE}::dequantize_per_channel")
def dequantize_per_channel(
    x: jax.Array, scales: jax.Array, zero_points: jax.Array, axis: int, low: int, high: int, dtype: torch.dtype, *,
    out_dtype: torch.dtype | None = None,
) -> jax.Array:  # fmt: skip
    """Use a scale for each slice along a dimension."""
    by = _along(axis, scales, x.ndim)
    moved = x if zero_points is None else x - _along(axis, zero_points, x.ndim)
    return (moved.astype(by.dtype) * by).astype(dtypes.to_jax(out_dtype or torch.float32))


@lowers_named(f"{_SPACE}::quantize_per_token")
def quantize_per_token(
    x: jax.Array, scales: jax.Array, zero_points: jax.Array, low: int, high: int, dtype: torch.dtype
) -> jax.Array:
    """Use a scale for each row."""
    found = jnp.round(x * (1.0 / scales) + zero_points)
    return jnp.clip(found, low, high).astype(dtypes.to_jax(dtype))


@lowers_named(f"{_SPACE}::dequantize_per_token")
def dequantize_per_token(
    x: jax.Array, scales: jax.Array, zero_points: jax.Array, low: int, high: int, dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> jax.Array:  # fmt: skip
    """Use a scale for each row."""
    moved = (x - zero_points).astype(jnp.promote_types(scales.dtype, np.float32))
    return (moved * scales).astype(dtypes.to_jax(output_dtype))


def _groups(x: jax.Array, scales: jax.Array, group_size: int) -> jax.Array:
    """Return rows of one group each; a group that is larger than a row is the row."""
    return x.reshape(-1, x.shape[-1] if group_size > x.shape[-1] and scales.shape[-1] == 1 else group_size)


@lowers_named(f"{_SPACE}::quantize_per_channel_group")
def quantize_per_channel_group(
    x: jax.Array,
    scales: jax.Array,
    zero_points: jax.Array,
    low: int,
    high: int,
    dtype: torch.dtype,
    group_size: int = 128,
) -> jax.Array:
    """Use a scale for each group of neighbours in a row."""
    rows = _groups(x, scales, group_size)
    by, zero = (each.reshape(-1, 1) for each in (scales, zero_points))
    found = jnp.clip(jnp.round(rows * (1.0 / by) + zero), low, high)
    return found.astype(dtypes.to_jax(dtype)).reshape(x.shape)


@lowers_named(f"{_SPACE}::dequantize_per_channel_group")
def dequantize_per_channel_group(
    x: jax.Array,
    scales: jax.Array,
    zero_points: jax.Array,
    low: int,
    high: int,
    dtype: torch.dtype,
    group_size: int = 128,
    output_dtype: torch.dtype = torch.float32,
) -> jax.Array:
    """Use a scale for each group of neighbours in a row."""
    rows = _groups(x, scales, group_size)
    moved = rows if zero_points is None else rows - zero_points.reshape(-1, 1)
    found = moved.astype(scales.dtype) * scales.reshape(-1, 1)
    return found.astype(dtypes.to_jax(output_dtype)).reshape(x.shape)
