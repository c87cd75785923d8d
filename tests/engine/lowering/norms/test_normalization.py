"""The norms give what PyTorch gives on the CPU."""

import pytest
import torch

from tests.support.rules import apply_rule, check_rule
from tests.support.signed_zeros import check_signs
from tests.support.ways_to_run import WAYS

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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_has_the_signs_of_the_cpu(training: bool, way: str) -> None:
    def function(x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        mean, var, norm = torch.zeros_like(weight), torch.ones_like(weight), torch.nn.functional.batch_norm
        saved = (mean, var) if training else (None, None)
        running = (None, None) if training else (mean, var)
        found: list[torch.Tensor] = []
        for factor in (weight, None):
            found += aten.native_batch_norm_backward(
                grad, x, factor, *running, *saved, training, 1e-5, [True, True, True]
            )
        return [*found, norm(x, mean, var, training=training), norm(x, mean, var, weight, var, training)]

    x, weight = torch.tensor([-0.0, -0.0, 0.0, 1.0]).repeat(4, 1), torch.tensor([1.0, -0.0, -2.0, 0.0])
    x[:, 3] = torch.tensor([1.0, -0.0, 0.0, -1.0])
    for grad in (torch.full((4, 4), -0.0), x.flip(1), torch.zeros(4, 4)):
        check_signs(way, function, x, grad, weight)


@pytest.mark.parametrize("way", ["recorded", "eager"])  # the others do not call autograd
def test_the_gradient_of_a_weight_of_one_row_keeps_its_signs(way: str) -> None:
    def function(x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
        weight = torch.ones_like(x).requires_grad_()
        return list(torch.autograd.grad(torch.nn.functional.rms_norm(x, [2, 3], weight), weight, grad))

    check_signs(way, function, torch.ones(2, 3), torch.tensor([[-0.0, 0.0, 1.0], [-0.0, -1.0, 0.0]]))
