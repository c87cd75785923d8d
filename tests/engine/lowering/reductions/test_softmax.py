"""Softmax, log-softmax and their gradients agree with PyTorch on the CPU."""

import pytest
import torch

from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule
from tests.support.values import FLOATS, INF, NAN

aten = torch.ops.aten

FORWARD = [aten._softmax.default, aten._log_softmax.default]
NARROW = [torch.bfloat16, torch.float16]


def scores(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_over_every_dimension(dtype: torch.dtype, dim: int) -> None:
    operand = scores(dtype, 3, 4, 5)
    output = torch.softmax(operand, dim)
    gradient = operand.flip(0).contiguous()
    calls = [
        call(aten._softmax.default, operand, dim, False),
        call(aten._safe_softmax.default, operand, dim),
        call(aten._softmax_backward_data.default, gradient, output, dim, dtype),
    ]
    # PyTorch's logarithm in a narrow dtype rounds on the way; the next test holds ours to the truth.
    if dtype not in NARROW:
        calls.append(call(aten._log_softmax.default, operand, dim, False))
        calls.append(call(aten._log_softmax_backward_data.default, gradient, output.log(), dim, dtype))
    check_calls(calls)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 33)], ids=str)
def test_gradients_of_minus_zeros_have_the_signs_of_the_cpu(shape: tuple[int, ...]) -> None:
    gradient = torch.full(shape, -0.0)
    backwards = (aten._softmax_backward_data.default, 0.25), (aten._log_softmax_backward_data.default, -1.0)
    for dim in range(max(1, gradient.dim())):
        for op, output in backwards:
            args = gradient, torch.full(shape, output), dim, torch.float32
            assert torch.equal(apply_rule(op, *args).signbit(), op(*args).signbit()), f"{op} over {dim}"


@pytest.mark.parametrize("dtype", NARROW)
def test_the_logarithm_of_a_narrow_softmax_is_the_rounded_truth(dtype: torch.dtype) -> None:
    operand = scores(dtype, 3, 4, 5)
    exact = torch.log_softmax(operand.double(), 1)
    got = apply_rule(aten._log_softmax.default, operand, 1, False)
    torch.testing.assert_close(got.to(dtype), exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-7)
    gradient = operand.flip(0)
    got = apply_rule(aten._log_softmax_backward_data.default, gradient, exact.to(dtype), 1, dtype)
    expected = aten._log_softmax_backward_data(gradient.float(), exact.to(dtype).float(), 1, torch.float32)
    torch.testing.assert_close(got, expected)


def test_float16_may_become_float32_on_the_way() -> None:
    operand = scores(torch.float16, 3, 4)
    for op in FORWARD:
        got = apply_rule(op, operand, 1, True)
        torch.testing.assert_close(got, op(operand.float(), 1, False))


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 0), (1,)])
def test_zero_dim_and_empty_tensors(shape: tuple[int, ...]) -> None:
    operand = torch.full(shape, 1.5)
    calls = [call(op, operand, -1, False) for op in FORWARD]
    calls += [call(aten._safe_softmax.default, operand, -1)]
    calls += [call(aten._softmax_backward_data.default, operand, operand, -1, torch.float32)]
    check_calls(calls)


def test_infinities_and_nan_spread_over_their_row_alone() -> None:
    rows = [[1, INF, 2], [-INF, -INF, -INF], [NAN, 1, 2], [1e4, -1e4, 0], [-INF, 1, 2]]
    operand = torch.tensor(rows)
    check_calls([*(call(op, operand, -1, False) for op in FORWARD), call(aten._safe_softmax.default, operand, -1)])


def test_the_safe_softmax_casts_first() -> None:
    operand = torch.tensor([[1, 2, 3]])
    check_calls([call(aten._safe_softmax.default, operand, 1, torch.float64)])


def hidden(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(2)) > 0.6


@pytest.mark.parametrize(("shape", "mask_type"), [((4, 4), 0), ((2, 4), 1), ((2, 3, 4, 4), 2)])
def test_masked_scores_count_for_nothing(shape: tuple[int, ...], mask_type: int) -> None:
    operand = scores(torch.float32, 2, 3, 4, 4)
    check_calls(call(aten._masked_softmax.default, operand, hidden(*shape), dim, mask_type) for dim in (3, -1))


def test_a_mask_may_have_the_shape_of_the_scores() -> None:
    operand = scores(torch.float32, 2, 3, 4, 4)
    output, mask = torch.softmax(operand, -1), hidden(2, 3, 4, 4)
    check_calls(
        [
            call(aten._masked_softmax.default, operand[0, 0], hidden(4, 4)),
            call(aten._masked_softmax.default, operand, mask, 2),
            call(aten._masked_softmax_backward.default, operand, output, mask),
            call(aten._masked_softmax_backward.default, operand, output, mask, 2),
        ]
    )


@pytest.mark.parametrize("op", FORWARD, ids=str)
def test_a_long_row_is_as_near_the_truth_as_pytorch(op: object) -> None:
    operand = scores(torch.float32, 2, 5000)
    exact = op(operand.double(), 1, False)
    ours = (apply_rule(op, operand, 1, False).double() - exact).abs().max()
    theirs = (op(operand, 1, False).double() - exact).abs().max()
    assert ours <= 4 * theirs
