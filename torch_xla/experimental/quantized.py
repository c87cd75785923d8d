"""PyTorch's `quantized_decomposed` operators on `xla`, one operation each. Importing `torch_xla` enables them."""

import torch
from torch import Tensor

from .._engine.compat.names.torch import define_quantized_operators

define_quantized_operators()

_operators = torch.ops.quantized_decomposed


def xla_quantize_per_tensor(
    input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    """Return `round(input / scale) + zero_point`, limited to the bounds, as `dtype`.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.quantized import xla_quantize_per_tensor
    >>> xla_quantize_per_tensor(torch.tensor([0.5, 9.0], device="xla"), 0.25, 0, -8, 7, torch.int8)
    tensor([2, 7], device='xla:0', dtype=torch.int8)
    """
    result: Tensor = _operators.quantize_per_tensor(input, scale, zero_point, quant_min, quant_max, dtype)
    return result


def xla_quantize_per_channel(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    """Quantize as `xla_quantize_per_tensor` does, with a scale and a zero point for each slice along `axis`."""
    result: Tensor = _operators.quantize_per_channel(input, scale, zero_point, axis, quant_min, quant_max, dtype)
    return result


def xla_dequantize_per_tensor(
    input: Tensor, scale: object, zero_point: object, *bounds: object, **kwargs: object
) -> Tensor:
    """Return `(input - zero_point) · scale`.

    The further arguments are bounds and dtype of `quantize_per_tensor`, or, if scale and zero point are tensors, axis,
    bounds and dtype of `quantize_per_channel`.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.quantized import xla_dequantize_per_tensor
    >>> x = torch.tensor([2, 7], dtype=torch.int8, device="xla")
    >>> xla_dequantize_per_tensor(x, 0.25, 0, -8, 7, torch.int8)
    tensor([0.5000, 1.7500], device='xla:0')
    """
    operator = _operators.dequantize_per_channel if isinstance(scale, Tensor) else _operators.dequantize_per_tensor
    result: Tensor = operator(input, scale, zero_point, *bounds, **kwargs)
    return result
