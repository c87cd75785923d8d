"""Fourier transforms, compared with PyTorch on the CPU."""

import pytest
import torch

from tests.support.rules import apply_rule, check_rule

aten = torch.ops.aten
NORMALIZATIONS = [0, 1, 2]
DIMS = [[1], [3], [0, 2], [2, 0], [0, 1, 2, 3], [3, 2, 1, 0]]
# Sums of up to 240 terms, added up in another order.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def values(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator, dtype=wide).to(dtype)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("forward", [True, False])
def test_complex_transforms_over_any_dimensions(dtype: torch.dtype, forward: bool) -> None:
    x = values(2, 5, 4, 6, dtype=dtype)
    for index, dims in enumerate(DIMS):
        check_rule(aten._fft_c2c.default, x, dims, NORMALIZATIONS[index % 3], forward, **CLOSE)
    for normalization in NORMALIZATIONS:
        check_rule(aten._fft_c2c.default, x, [1, 3], normalization, forward, **CLOSE)
    check_rule(aten._fft_c2c.default, x, [], 0, forward)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("onesided", [True, False])
def test_real_transforms_keep_half_of_the_last_dimension_given(dtype: torch.dtype, onesided: bool) -> None:
    x = values(2, 5, 4, 6, dtype=dtype)
    for index, dims in enumerate(DIMS):
        check_rule(aten._fft_r2c.default, x, dims, NORMALIZATIONS[index % 3], onesided, **CLOSE)
    for normalization in NORMALIZATIONS:
        check_rule(aten._fft_r2c.default, x, [3, 1], normalization, onesided, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_transforms_back_to_real_numbers_have_an_even_or_an_odd_length(dtype: torch.dtype) -> None:
    for length in (6, 7, 1):
        for normalization in NORMALIZATIONS:
            x = values(3, length // 2 + 1, 4, dtype=dtype)
            check_rule(aten._fft_c2r.default, x, [0, 1], normalization, length, **CLOSE)
            check_rule(aten._fft_c2r.default, x, [1], normalization, length, **CLOSE)
    x = values(2, 3, 4, 5, dtype=dtype)
    check_rule(aten._fft_c2r.default, x, [0, 1, 2, 3], 2, 8, **CLOSE)


def test_empty_batches_are_empty() -> None:
    # PyTorch's library on the CPU refuses them; its rule for the shape does not.
    complexes, reals = torch.zeros(0, 3, dtype=torch.complex64), torch.zeros(0, 5)
    calls = [
        (aten._fft_c2c.default, complexes, [1], 2, False),
        (aten._fft_c2r.default, complexes, [1], 1, 5),
        (aten._fft_r2c.default, reals, [1], 1, True),
        (aten._fft_r2c.default, reals, [1], 1, False),
    ]
    for op, operand, *arguments in calls:
        expected = op(operand.to("meta"), *arguments)
        got = apply_rule(op, operand, *arguments)
        assert got.shape == expected.shape and got.dtype is expected.dtype
