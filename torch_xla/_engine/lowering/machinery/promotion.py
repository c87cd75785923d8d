"""PyTorch's type promotion, once for all rules.

Three classes of operands, from strong to weak: tensors with dimensions, tensors without, Python numbers. A weaker
class matters only if its kind (bool < integer < float < complex) is higher than that of every stronger class.
"""

from collections.abc import Iterable

import torch

_BOOL, _INTEGER, _FLOAT, _COMPLEX = range(4)


def _kind(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return _COMPLEX
    if dtype.is_floating_point:
        return _FLOAT
    return _BOOL if dtype is torch.bool else _INTEGER


def _dtype_of_number(number: bool | int | float | complex) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, int):
        return torch.int64
    if isinstance(number, float):
        return torch.get_default_dtype()
    return torch.complex128 if torch.get_default_dtype() is torch.float64 else torch.complex64


def _complex_of(dtype: torch.dtype) -> torch.dtype:
    """Return complex numbers as precise as the stronger class's real ones; XLA has none of half precision."""
    return torch.complex128 if dtype is torch.float64 else torch.complex64


def common_dtype(
    tensors: Iterable[tuple[torch.dtype, int]], numbers: Iterable[bool | int | float | complex]
) -> torch.dtype:
    """Return the dtype PyTorch computes in, for tensors given as (dtype, number of dimensions) and Python numbers."""
    dimensioned: torch.dtype | None = None
    zero_dim: torch.dtype | None = None
    wrapped: torch.dtype | None = None
    for dtype, ndim in tensors:
        if ndim:
            dimensioned = dtype if dimensioned is None else torch.promote_types(dimensioned, dtype)
        else:
            zero_dim = dtype if zero_dim is None else torch.promote_types(zero_dim, dtype)
    for number in numbers:
        dtype = _dtype_of_number(number)
        wrapped = dtype if wrapped is None else torch.promote_types(wrapped, dtype)
    result: torch.dtype | None = None
    for candidate in (dimensioned, zero_dim, wrapped):
        if candidate is None:
            continue
        if result is None:
            result = candidate
        elif _kind(candidate) > _kind(result):
            result = _complex_of(result) if _kind(result) == _FLOAT else candidate
    if result is None:
        raise ValueError("type promotion needs at least one tensor or number")
    return result


def float_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return `dtype`, or the default float dtype if it is an integer or bool dtype."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()
