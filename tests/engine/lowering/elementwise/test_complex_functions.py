"""Functions of complex numbers have the values of the CPU, also where a part is infinite, NaN, -0 or very large."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from tests.support.ways_to_run import WAYS, made_to_run

Function = Callable[..., Tensor]

NAMES = (
    "abs acos acosh angle asin asinh atan atanh cos cosh exp exp2 expm1 isfinite log log10 log1p log2 neg reciprocal "
    "rsqrt sgn sigmoid sin sinc sinh sqrt square tan tanh"
).split()
EXPONENTS = (0, 0.5, -0.5, 1, 2, 3, -1, -2, 1.5, 2j)
OF_ONE: dict[str, Function] = {
    **{name: getattr(torch, name) for name in NAMES},
    **{f"pow({exponent})": lambda z, exponent=exponent: torch.pow(z, exponent) for exponent in EXPONENTS},
    "silu": silu,
    "pow(2, z)": lambda z: torch.pow(2.0, z),
    "z / 2": lambda z: z / 2.0,
    "z / (1 + 2j)": lambda z: z / (1 + 2j),
    "(1 + 2j) / z": lambda z: (1 + 2j) / z,
    "z * 2": lambda z: z * 2.0,
    "z * (1 + 2j)": lambda z: z * (1 + 2j),
    "sum": lambda z: z[:, None].sum(1),
    "mean": lambda z: z[:, None].expand(-1, 3).mean(1),
    "prod": lambda z: z[:, None].prod(1),
    "cumsum": lambda z: z[:, None].cumsum(1),
    "avg_pool1d": lambda z: torch.nn.functional.avg_pool1d(torch.view_as_real(z).T[None], 1)[0, 0],
    "index_add": lambda z: torch.zeros(1, dtype=z.dtype, device=z.device).index_add(
        0, torch.zeros(1, dtype=torch.int64, device=z.device), z[1:2]
    ),
}  # fmt: skip
OF_TWO: dict[str, Function] = {
    "add": torch.add,
    "add with alpha": lambda z, w: torch.add(z, w, alpha=3),
    "sub": torch.sub,
    "rsub": torch.rsub,
    "sub with alpha": lambda z, w: torch.sub(z, w, alpha=3),
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "addcmul": lambda z, w: torch.addcmul(z, z, w),
    "addcdiv": lambda z, w: torch.addcdiv(z, z, w),
}


def is_excused(name: str, operand: Tensor) -> Tensor:
    """Return where a function is not compared."""
    real, imag = operand.real, operand.imag
    is_great = torch.view_as_real(operand).abs().amax(-1) >= 0.5 * torch.finfo(real.dtype).max
    if name == "log1p":
        # PyTorch computes it from z / ((1 + z) - 1), which is NaN where the sum loses a small real part beside an
        # infinite imaginary part. NumPy and the C standard's logarithm have infinity and a quarter turn.
        return (real.abs() < 1e-30) & (real != 0) & imag.isinf()
    if name == "acos":  # beside 1, PyTorch's difference of a quarter turn and the inverse sine has no digits in float64
        return (real.abs() == 1) & (imag.abs() < 1e-30)
    if "*" in name or "mul" in name:  # LLVM joins a product and a sum, each of which would overflow
        return torch.view_as_real(operand).abs().amax(-1) >= 1e30
    if name == "pow(1.5)":  # the angle is subnormal
        return is_great & ~operand.isinf()
    return torch.zeros_like(is_great)


def parts_to_try(dtype: torch.dtype) -> list[float]:
    info = torch.finfo(dtype)
    great = 1e30 if dtype == torch.float32 else 1e300
    parts = [0.0, 1.0, 0.5, 2.5, info.smallest_normal * 1e4, great, info.max, math.inf]
    return [*parts, *(-part for part in parts), math.nan]


def grid(parts: list[float], dtype: torch.dtype) -> Tensor:
    values = torch.tensor(parts, dtype=dtype)
    return torch.complex(values.repeat_interleave(len(values)), values.repeat(len(values)))


def all_of(functions: dict[str, Function]) -> Callable[..., list[Tensor]]:
    return lambda *operands: [function(*operands) for function in functions.values()]


def on_the_cpu(function: Function, *operands: Tensor) -> list[Tensor]:
    """Return what the CPU gives alone, and in blocks of 16 equal operands: its vectors' values may be others."""
    blocks = [each.repeat_interleave(16) for each in operands]
    alone = [each.reshape(-1, 1) for each in operands]
    return [torch.cat([function(*each) for each in zip(*alone, strict=True)]), function(*blocks)[::16]]


def are_equal(made: Tensor, expected: Tensor, *operands: Tensor) -> Tensor:
    """Return, for each part, whether it is infinite, NaN, a zero of this sign or near, as the expected one is."""
    if not made.is_floating_point() and not made.is_complex():
        return made == expected
    real = [torch.view_as_real(each) if each.is_complex() else each[:, None] for each in (made, expected)]
    info = torch.finfo(real[0].dtype)
    tolerance = 1e-4 if info.bits == 32 else 1e-9
    size = real[1].abs().nan_to_num(0, 0, 0).amax(-1, keepdim=True)
    is_near = ((real[0] - real[1]).abs() <= tolerance * size + 4 * info.smallest_normal) | (real[0] == real[1])
    # XLA:CPU makes 0 of subnormal results: signs of zeros are not compared where products or inverses are subnormal.
    parts = torch.stack([torch.view_as_real(each).abs() for each in operands])
    underflows = ((parts > 0.1 / info.smallest_normal) & parts.isfinite()) | (
        (parts > 0) & (parts < 1e4 * info.smallest_normal * 2)
    )
    is_signed = (real[1] == 0) & ~underflows.any(0).any(-1, keepdim=True)
    has_sign = ~is_signed | (real[0].signbit() == real[1].signbit())
    return ((is_near & has_sign) | (real[0].isnan() & real[1].isnan())).all(-1)


def wrong(name: str, function: Function, made: Tensor, *operands: Tensor) -> list[str]:
    expected = on_the_cpu(function, *operands) if made.numel() == operands[0].numel() else [function(*operands)] * 2
    if made.numel() != operands[0].numel():
        operands = tuple(each[1:2] for each in operands)
    right = torch.stack([are_equal(made, each, *operands) for each in expected]).any(0)
    for operand in operands:
        right |= is_excused(name, operand)
    if name == "pow":  # an angle of 1e30 has no digits
        right |= ((operands[1].real.abs() >= 1e30) | (operands[1].imag.abs() >= 1e30)) & ~operands[1].isinf()
    return [
        f"{name} of {[each[place].item() for each in operands]}: {made[place].item()}, not {expected[0][place].item()}"
        for place in (~right).nonzero().flatten().tolist()
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_special_numbers(way: str, dtype: torch.dtype) -> None:
    operand = grid(parts_to_try(dtype), dtype)
    found: list[str] = []
    with made_to_run(way, all_of(OF_ONE)) as run:
        for _ in range(3 if way in ("replay", "recorded") else 1):
            results = [each.cpu() for each in run(operand.to("xla"))]
    for (name, function), made in zip(OF_ONE.items(), results, strict=True):
        found += wrong(name, function, made, operand)
    assert not found, "\n".join([f"{len(found)} wrong", *found[:40]])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_two_special_numbers(way: str, dtype: torch.dtype) -> None:
    parts = [0.0, -0.0, 1.0, -2.5, 1e30 if dtype == torch.float32 else 1e300, math.inf, -math.inf, math.nan]
    numbers = grid(parts, dtype)
    operands = [numbers.repeat_interleave(len(numbers)), numbers.repeat(len(numbers))]
    with made_to_run(way, all_of(OF_TWO)) as run:
        results = [each.cpu() for each in run(*(each.to("xla") for each in operands))]
    found = [
        text
        for (name, function), made in zip(OF_TWO.items(), results, strict=True)
        for text in wrong(name, function, made, *operands)
    ]
    assert not found, "\n".join([f"{len(found)} wrong", *found[:40]])
