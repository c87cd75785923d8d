"""The pieces of synchronized batch normalization: together they are batch normalization of the whole batch."""

import pytest
import torch

from tests.support.rules import apply_rule
from torch_xla._engine.dispatch.ops.synchronized_batch_norm import gather_stats_with_counts

aten = torch.ops.aten
EPS = 1e-3
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def parts(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Two processes' batches, of different sizes."""
    whole = (torch.randn(5, 3, 4, 2, generator=torch.Generator().manual_seed(0)) * 3 + 20).to(dtype)
    return whole[:2], whole[2:]


def gathered(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = (apply_rule(aten.batch_norm_stats.default, part, EPS) for part in parts(dtype))
    means, invstds = (torch.stack(pair) for pair in zip(first, second, strict=True))
    counts = torch.tensor([part.numel() / 3 for part in parts(dtype)])
    return gather_stats_with_counts(torch.cat(parts(dtype)), means, invstds, None, None, 0.1, EPS, counts)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_union_of_statistics_normalizes_like_the_whole_batch(dtype: torch.dtype) -> None:
    whole, weight, bias = torch.cat(parts(dtype)), torch.rand(3), torch.rand(3)
    mean, invstd = gathered(dtype)
    exact = whole.double()
    torch.testing.assert_close(mean.double(), exact.mean((0, 2, 3)), rtol=1e-5, atol=0)
    torch.testing.assert_close(invstd.double(), (exact.var((0, 2, 3), correction=0) + EPS).rsqrt(), rtol=1e-5, atol=0)
    expected = aten.native_batch_norm.default(exact, weight.double(), bias.double(), None, None, True, 0.1, EPS)[0]
    for affine in ((weight, bias), (None, None)):
        result = apply_rule(aten.batch_norm_elemt.default, whole, *affine, mean, invstd, EPS)
        if affine[0] is None:
            result = result * weight.reshape(1, 3, 1, 1) + bias.reshape(1, 3, 1, 1)
        torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:aten..batch_norm_stats has no XLA lowering")
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_numbers_that_are_no_floats_have_no_statistics(dtype: torch.dtype) -> None:
    with pytest.raises(NotImplementedError, match="Could not run 'aten::batch_norm_stats'"):
        torch.batch_norm_stats(torch.ones(2, 3, device="xla").to(dtype), 1e-5)


def test_gradients_of_all_parts_are_those_of_the_whole_batch() -> None:
    whole, weight = torch.cat(parts(torch.float32)), torch.rand(3)
    mean, invstd = gathered(torch.float32)
    grad = torch.randn(whole.shape)
    expected = aten.native_batch_norm_backward.default(
        grad, whole, weight, None, None, mean, invstd, True, EPS, [True, True, True]
    )
    reduced = [
        apply_rule(aten.batch_norm_backward_reduce.default, slope, part, mean, invstd, weight, True, True, True)
        for slope, part in zip(grad.split([2, 3]), parts(torch.float32), strict=True)
    ]
    sum_dy, sum_dy_xmu, grad_weight, grad_bias = (a + b for a, b in zip(*reduced, strict=True))
    counts = torch.tensor([16, 24], dtype=torch.int32)
    rest = (mean, invstd, weight, sum_dy, sum_dy_xmu, counts)
    ours = apply_rule(aten.batch_norm_backward_elemt.default, grad, whole, *rest), grad_weight, grad_bias
    for our, their in zip(ours, expected, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-4)


def test_sums_that_nobody_asks_for_are_none() -> None:
    part, ones = parts(torch.float32)[0], torch.ones(3)
    args = (part, part, ones, ones, None)
    assert apply_rule(aten.batch_norm_backward_reduce.default, *args, False, False, False) == (None,) * 4
