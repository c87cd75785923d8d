"""Meta kernels of gradients, and of dropout, where PyTorch's own differ from the CPU: in strides, dtypes or errors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..compat.names import torch as private
from . import stricter_meta_kernels

aten = torch.ops.aten


def _of_operands(op: Any, slope_of: Callable[..., float]) -> Callable[..., Any]:
    """Refuse a result with a negative slope, as the CPU does: it does not determine its input."""

    like_operands = _STRIDED.get(op, op)

    def kernel(*args: Any) -> object:
        if slope_of(*args) < 0:
            name = op.name().removeprefix("aten::").removesuffix("_backward")
            raise RuntimeError(
                f"In-place {name} backward calculation is triggered with a negative slope which is not supported. "
                "This is caused by calling in-place forward function with a negative slope, please call out-of-place "
                "version instead."
            )
        return like_operands(*args)

    return kernel


def _strided_as(op: Callable[..., Tensor], first: int, second: int) -> Callable[..., object]:
    """Give the result the strides of other elementwise results of the two operands in these places."""

    def kernel(*args: Any, **options: object) -> Tensor:
        like = torch.eq(args[first], args[second])
        return torch.empty_strided(like.shape, like.stride(), dtype=op(*args, **options).dtype, device="meta")

    return kernel


def _contiguous_as_input(op: Any) -> Callable[..., object]:
    """Give the gradient of a loss the dtype of its input and, whatever the strides of that, contiguous elements."""
    kernel_of_op = stricter_meta_kernels.KERNELS.get(op.name(), op)

    def kernel(grad_output: Tensor, self: Tensor, *args: object, **options: object) -> Tensor:
        result: Any = kernel_of_op(grad_output, self, *args, **options)
        return torch.empty(result.shape, dtype=self.dtype, device="meta")

    return kernel


def _as_input(op: Callable[..., Tensor]) -> Callable[..., object]:
    """Give the gradient of a loss the dtype and the strides of its input."""

    def kernel(grad_output: Tensor, self: Tensor, *args: object, **options: object) -> Tensor:
        result = op(grad_output, self, *args, **options)
        same = torch.empty_like(self)
        return same if same.shape == result.shape else result.to(same.dtype)

    return kernel


def glu_backward(grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    """Return a contiguous gradient."""
    return torch.empty_like(aten.glu_backward.default(grad_output, self, dim), memory_format=torch.contiguous_format)


def _gradient_of_norm(op: Any, format_of: Callable[[Tensor], torch.memory_format]) -> Callable[..., object]:
    """Give the gradient of the input the memory format that `format_of` returns for the input."""

    def kernel(grad_output: Tensor, input: Tensor, *args: object) -> tuple[Tensor | None, ...]:
        grad_input, *rest = op(grad_output.contiguous(), input.contiguous(), *args)
        if grad_input is not None:
            grad_input = torch.empty_like(grad_input, memory_format=format_of(input))
        return grad_input, *rest

    return kernel


def _gradient_of_softmax(op: Any) -> Callable[..., object]:
    """Give the gradient its own dtype, but that of the input to halves that softmax has widened to float32."""

    def kernel(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
        result: Tensor = op(grad_output, output, dim, grad_output.dtype)
        is_of_halves = input_dtype is torch.float16 and result.dtype is torch.float32
        result = result.to(input_dtype) if is_of_halves else result
        return result.contiguous() if op is aten._log_softmax_backward_data.default else result

    return kernel


def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Return a mask of nothing in the dtype of the input, as the CPU does."""
    result, mask = aten.native_dropout.default(input, p, train)
    return result, mask if input.numel() else mask.to(input.dtype)


def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Promote as the product that it is; PyTorch's own kernel makes truth values of the mask first."""
    return grad_output * mask * scale


# By operator: PyTorch describes it in Python, and the last operation there may have other strides.
_STRIDED: dict[Any, Callable[..., object]] = {
    op: _strided_as(op, first, second)
    for op, first, second in (
        (aten.elu_backward.default, 0, 5),
        (aten.hardsigmoid_backward.default, 0, 1),
        (aten.hardswish_backward.default, 0, 1),
        (aten.hardtanh_backward.default, 0, 1),
        (aten.leaky_relu_backward.default, 1, 0),
        (aten.logit_backward.default, 0, 1),
        (aten.softplus_backward.default, 0, 1),
    )
}

_OF_LOSSES = (aten.huber_loss_backward.default, aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default)

_OF_NORMS: dict[Any, Callable[[Tensor], torch.memory_format]] = {
    aten.native_batch_norm_backward.default: private.suggest_memory_format,
    aten.native_group_norm_backward.default: private.suggest_memory_format,
    aten.native_layer_norm_backward.default: lambda input: torch.contiguous_format,
}

_OF_SOFTMAX = (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)

# By the arguments of each: the slope below zero, if the operand is gone and the result is given in its place.
_SLOPES: dict[Any, Callable[..., float]] = {
    aten.elu_backward.default: lambda grad, alpha, scale, input_scale, is_result, x: alpha if is_result else 0,
    aten.leaky_relu_backward.default: lambda grad, x, slope, is_result: slope if is_result else 0,
    aten.rrelu_with_noise_backward.default: lambda grad, x, noise, lower, upper, training, is_result: (
        (lower + upper) / 2 if is_result and not training else 0
    ),
}

KERNELS: dict[str, Callable[..., object]] = {
    **{op.name(): kernel for op, kernel in _STRIDED.items()},
    **{op.name(): _of_operands(op, slope) for op, slope in _SLOPES.items()},
    **{op.name(): _contiguous_as_input(op) for op in _OF_LOSSES},
    **{op.name(): _gradient_of_norm(op, format_of) for op, format_of in _OF_NORMS.items()},
    **{op.name(): _gradient_of_softmax(op) for op in _OF_SOFTMAX},
    "aten::binary_cross_entropy_backward": _as_input(aten.binary_cross_entropy_backward.default),
    "aten::glu_backward": glu_backward,
    "aten::native_dropout": native_dropout,
    "aten::native_dropout_backward": native_dropout_backward,
}
