"""The norms give what PyTorch gives on the CPU."""

import pytest
import torch

from tests.support.rules import apply_rule, check_rule

aten = torch.ops.aten

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
MASKS = ([True, True, True], [True, False, False], [False, True, True])


def rand(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size) + 1)).to(dtype)


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    # Sums in another order, of numbers that were rounded before.
    return {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 2e-5}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", (True, False))
def test_layer_norm(dtype: torch.dtype, affine: bool) -> None:
    x = rand(3, 4, 5, dtype=dtype) + 2
    weight, bias = (rand(4, 5, dtype=dtype), rand(4, 5, dtype=dtype)) if affine else (None, None)
    check_rule(aten.native_layer_norm.default, x, [4, 5], weight, bias, 1e-5, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_layer_norm_backward(dtype: torch.dtype, mask: list[bool]) -> None:
    x, weight, bias = rand(6, 5, dtype=dtype), rand(5, dtype=dtype), rand(5, dtype=dtype)
    _, mean, rstd = aten.native_layer_norm(x, [5], weight, bias, 1e-5)
    check = (
        aten.native_layer_norm_backward.default,
        rand(6, 5, dtype=dtype) + 1,
        x,
        [5],
        mean,
        rstd,
        weight,
        bias,
        mask,
    )
    check_rule(*check, **tolerance(dtype))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_group_norm(dtype: torch.dtype) -> None:
    x, weight, bias = rand(2, 6, 3, 3, dtype=dtype), rand(6, dtype=dtype), rand(6, dtype=dtype)
    check_rule(aten.native_group_norm.default, x, weight, bias, 2, 6, 9, 3, 1e-5, **tolerance(dtype))
    _, mean, rstd = aten.native_group_norm(x, weight, bias, 2, 6, 9, 3, 1e-5)
    for mask in MASKS:
        arguments = (rand(2, 6, 3, 3, dtype=dtype) + 1, x, mean, rstd, weight, 2, 6, 9, 3, mask)
        check_rule(aten.native_group_norm_backward.default, *arguments, **tolerance(dtype))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("training", (True, False))
def test_batch_norm(dtype: torch.dtype, training: bool) -> None:
    x, weight, bias = rand(4, 3, 5, dtype=dtype), rand(3, dtype=dtype), rand(3, dtype=dtype)
    mean, var = rand(3, dtype=dtype), rand(3, dtype=dtype).abs() + 1
    op = aten._native_batch_norm_legit_functional.default
    ours = apply_rule(op, x, weight, bias, mean, var, training, 0.1, 1e-5)
    theirs = op(x, weight, bias, mean, var, training, 0.1, 1e-5)
    # In inference the CPU returns no statistics; every other device returns those it used.
    compared = range(5) if training else (0, 3, 4)
    for i in compared:
        torch.testing.assert_close(ours[i], theirs[i], **tolerance(dtype))
    for mask in MASKS:
        arguments = (rand(4, 3, 5, dtype=dtype) + 1, x, weight, mean, var, ours[1], ours[2], training, 1e-5, mask)
        check_rule(aten.native_batch_norm_backward.default, *arguments, **tolerance(dtype))


def test_batch_norm_without_running_statistics() -> None:
    check_rule(aten._native_batch_norm_legit.no_stats, rand(4, 3, 2, 2), None, None, True, 0.1, 1e-5)
