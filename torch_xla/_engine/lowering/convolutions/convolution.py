"""Convolutions in one, two and three dimensions, transposed ones too, and their gradients."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch

from ..machinery.opmath import widened
from ..machinery.registry import lowers
from .correlation import correlate, kernel_gradient, operand_gradient
from .window import Window

aten = torch.ops.aten

_Gradients = tuple[jax.Array | None, jax.Array | None, jax.Array | None]


@lowers(aten.convolution.default, aten.convolution_overrideable.default)
def convolution(
    input: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> jax.Array:
    window = _window(weight.shape[2:], stride, padding, dilation)
    if input.shape[1] == 0:
        weight = weight[:0]  # PyTorch's result has no channels where the input has none
        bias = None
    if transposed:
        result_extent = tuple(
            (extent - 1) * step - low - high + spacing * (size - 1) + more + 1
            for extent, step, (low, high), spacing, size, more in zip(
                input.shape[2:], window.stride, window.padding, window.dilation, window.kernel,
                _listed(output_padding, weight.ndim - 2), strict=True,
            )
        )  # fmt: skip
        result = operand_gradient(input, weight, window, groups, result_extent)
    else:
        result = correlate(input, weight, window, groups)
    if bias is None:
        return result
    return result + bias.astype(result.dtype).reshape(-1, *[1] * (weight.ndim - 2))


@lowers(aten.convolution_backward.default)
def convolution_backward(
    grad_output: jax.Array,
    input: jax.Array,
    weight: jax.Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> _Gradients:
    # A transposed convolution is an input gradient: so input and gradient play each other's part.
    operand, grad = (grad_output, input) if transposed else (input, grad_output)
    window = _window(weight.shape[2:], stride, padding, dilation).fitted(operand.shape[2:], grad.shape[2:])
    grad_input = grad_weight = grad_bias = None
    if output_mask[0] and transposed:
        grad_input = correlate(grad_output, weight, window, groups)
    elif output_mask[0]:
        grad_input = operand_gradient(grad_output, weight, window, groups, input.shape[2:])
    if output_mask[1]:
        grad_weight = kernel_gradient(operand, grad, window, groups).reshape(weight.shape)
    if output_mask[2]:
        others = (0, *range(2, grad_output.ndim))
        grad_bias = jnp.sum(widened(grad_output), others)
    return grad_input, grad_weight, grad_bias


@lowers(aten.convolution_backward_overrideable.default)
def convolution_backward_overrideable(
    grad_output: jax.Array,
    input: jax.Array,
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> _Gradients:
    return convolution_backward(
        grad_output, input, weight, None, stride, padding, dilation, transposed, output_padding, groups, output_mask
    )


@lowers(aten.conv_tbc.default)
def conv_tbc(self: jax.Array, weight: jax.Array, bias: jax.Array, pad: int = 0) -> jax.Array:
    """Convolve in one dimension, with time first and channels last: `[time, batch, channels]`."""
    window = _window((weight.shape[0],), [1], [pad], [1])
    result = correlate(self.transpose(1, 2, 0), weight.transpose(2, 1, 0), window, 1)
    return result.transpose(2, 0, 1) + bias.astype(result.dtype)


def _listed(numbers: Sequence[int], count: int) -> tuple[int, ...]:
    """Return one number per dimension, where PyTorch allows a single one for all."""
    return tuple(numbers) * count if len(numbers) == 1 else tuple(numbers)


def _window(kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> Window:
    count = len(kernel)
    if any(margin < 0 for margin in padding):
        raise RuntimeError("negative padding is not supported")
    margins = tuple((margin, margin) for margin in _listed(padding, count))
    return Window(tuple(kernel), _listed(stride, count), margins, _listed(dilation, count), (1,) * count)
