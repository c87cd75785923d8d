"""Numbers at the boundaries of dtypes: what a conversion to one of them may get wrong."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FLOAT8 = tuple(
    getattr(torch, f"float8_{name}") for name in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
)  # fmt: skip
INTEGERS = tuple(getattr(torch, f"{sign}int{width}") for sign in ("", "u") for width in (8, 16, 32, 64))
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
ALL = (*FLOATS, *FLOAT8, *INTEGERS, torch.bool, *COMPLEX)

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def boundaries(dtype: torch.dtype) -> Tensor:
    """Numbers of `dtype`: all of them up to 16 bits, and of wider ones those around what narrower ones hold."""
    if dtype.is_complex:
        parts = boundaries(dtype.to_real())[:: 7 if dtype is torch.complex32 else 1]
        return torch.view_as_complex(torch.stack([parts, parts.roll(3)], -1))
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    if dtype.itemsize == 2:
        return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    if dtype.is_floating_point:
        return _around_floats().to(dtype)
    return torch.from_numpy(np.array(sorted(_integers(dtype)), dtype=str(dtype).removeprefix("torch.")))


def _around_floats() -> Tensor:
    """Zeros, subnormal numbers, ties, the largest and what is beyond, limits of integers; each with its neighbours."""
    found = [0.0, 0.5, 1.5, 2.5, 5e-324, 2.2250738585072009e-308, 1e300, math.inf, math.nan]
    found.extend(2.0**power for power in (-150, -149, -134, -133, -128, -127, -126))
    for dtype in FLOATS:
        least, step, largest = (getattr(torch.finfo(dtype), name) for name in ("smallest_normal", "eps", "max"))
        found.extend(least * part for part in (1, 0.5, step, step / 2, step * 1.5, step * 2.5, 1 - step, 1 - step / 2))
        found.extend(1 + step * part for part in (1, 0.5, 1.5, -0.5))
        found.extend(
            largest * (1 + step * part) for part in (0, 0.25, 0.5, 1) if dtype is not torch.float64 or not part
        )
    for dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        found.extend(float(each) for each in (limits.min, limits.min - 0.5, limits.max // 2 + 1, limits.max))
        found.extend(limits.max + part for part in (-0.5, 0.5, 1))
    numbers = [torch.tensor(found, dtype=torch.float64)]
    for dtype in FLOAT8:
        each = boundaries(dtype).double()
        each = each[each.isfinite()].unique()
        numbers.extend((each, (each[1:] + each[:-1]) / 2))
    whole = torch.cat(numbers)
    whole = torch.cat([whole, -whole])
    beside = [
        torch.nextafter(each, torch.full_like(each, way))
        for each in (whole, whole.float())
        for way in (-math.inf, math.inf)
    ]
    return torch.cat([whole, *(each.double() for each in beside)])


def _integers(dtype: torch.dtype) -> Iterator[int]:
    """Integers around powers of two, and around ties of the floats that they may become."""
    limits = torch.iinfo(dtype)
    for power in range(dtype.itemsize * 8):
        numbers = {(factor << power) + beside for factor in (1, 3) for beside in range(-3, 4)}
        for digits in (3, 4, 8, 11, 24, 53):
            if power >= digits:
                numbers.update((1 << power) + (1 << (power - digits)) + beside for beside in (-1, 0, 1))
        for number in numbers:
            yield from (each for each in (number, -number) if limits.min <= each <= limits.max)


def is_defined(source: Tensor, dtype: torch.dtype) -> Tensor:
    """Where C says what becomes of a number: floats beyond the range of an integer dtype, and NaN, become anything."""
    real = source.real if source.is_complex() else source
    if dtype not in INTEGERS or not real.dtype.is_floating_point:
        return torch.ones(source.shape, dtype=torch.bool)
    whole, limits = real.double().trunc(), torch.iinfo(dtype)
    return (whole >= float(limits.min)) & ((whole <= limits.max) if dtype.itemsize < 8 else (whole < float(limits.max)))


def differences(made: Tensor, expected: Tensor) -> Tensor:
    """Where two tensors of one dtype differ in their bits; all NaN are one."""
    if made.is_complex():
        return differences(torch.view_as_real(made), torch.view_as_real(expected)).any(-1)
    if made.dtype is torch.bool:
        return made != expected
    width = _BITS[made.dtype.itemsize]
    differ = made.view(width) != expected.view(width)
    if not made.dtype.is_floating_point:
        return differ
    nans = [(each.double() if each.dtype.itemsize == 1 else each).isnan() for each in (made, expected)]
    return (nans[0] != nans[1]) | (differ & ~nans[0])
