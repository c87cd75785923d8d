"""Operands with the values that element-wise rules get wrong: signed zeros, infinities, NaN, ends of integer ranges."""

import torch

NAN, INF = float("nan"), float("inf")

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8]

_FLOAT_VALUES = [0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 7.25, 0.1, 1e-3, 19.5, 20.5, 60.0, 100.0, 1e4, INF]
_INTEGER_VALUES = [0, 1, -1, 2, -2, 3, -3, 5, -7, 10, 17, 100, -100, 127, -128]
_PARTS = [0.0, -0.0, 1.0, -1.0, 0.3, -2.5, 20.0]


def edge_values(dtype: torch.dtype) -> torch.Tensor:
    """A vector of them; every value of a small dtype would be too many, these are the telling ones."""
    if dtype is torch.bool:
        return torch.tensor([True, False])
    if dtype.is_complex:
        return torch.tensor([complex(real, imag) for real in _PARTS for imag in _PARTS], dtype=dtype)
    if dtype.is_floating_point:
        return torch.tensor([*_FLOAT_VALUES, *(-value for value in _FLOAT_VALUES), NAN], dtype=dtype)
    return torch.tensor(_INTEGER_VALUES).to(dtype)


def grid(dtype: torch.dtype, other: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """A column and a row that meet each value with each other one when they are broadcast."""
    return edge_values(dtype)[:, None], edge_values(other or dtype)[None]


def finite(operand: torch.Tensor) -> torch.Tensor:
    return operand[operand.isfinite()]
