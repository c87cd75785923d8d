"""Scans agree with PyTorch on the CPU."""

import time

import pytest
import torch

import torch_xla._engine.lowering.reductions.cumulative  # noqa: F401
from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule, check_rule
from tests.support.signed_zeros import check_signs
from tests.support.ways_to_run import WAYS

aten = torch.ops.aten

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8]
)
def test_scans_agree_in_every_dtype_and_direction(dtype: torch.dtype) -> None:
    operand = (torch.randn(3, 5, 4) * 3).to(dtype)
    calls = []
    for dim in (0, 1, -1):
        calls += [call(op, operand, dim) for op in (aten.cumsum.default, aten.cumprod.default)]
        calls += [call(op, operand, dim) for op in (aten.cummax.default, aten.cummin.default)]
    check_calls(calls)


def test_bools_and_complex_numbers_are_summed_too() -> None:
    flags, numbers = torch.tensor([True, False, True]), torch.randn(4, 3, dtype=torch.complex64)
    calls = [call(op, x, 0) for op in (aten.cumsum.default, aten.cumprod.default) for x in (flags, numbers)]
    check_calls([*calls, call(aten.cummax.default, flags, 0), call(aten.cummin.default, flags, 0)])


def test_a_requested_dtype_is_the_one_added_up_in() -> None:
    operand = torch.randint(0, 9, (6,))
    check_calls(
        [
            call(aten.cumsum.default, operand, 0, dtype=torch.float32),
            call(aten.cumprod.default, operand, 0, dtype=torch.float64),
            call(aten.cumsum.default, operand.float() * 1.5, 0, dtype=torch.int64),
        ]
    )


@pytest.mark.parametrize("operand", [torch.tensor(2.0), torch.zeros(0), torch.zeros(0, 3), torch.zeros(3, 0)], ids=str)
def test_tensors_without_dimensions_or_elements_are_scanned(operand: torch.Tensor) -> None:
    ops = (aten.cumsum, aten.cumprod, aten.cummax, aten.cummin, aten.logcumsumexp)
    check_calls(call(op.default, operand, dim) for op in ops for dim in (0, -1))


def test_the_last_of_equal_extrema_is_reported_and_nan_stays() -> None:
    rows = torch.tensor([[1.0, 3, 3, 2, 3, 0], [1, NAN, 5, NAN, 0, 9], [-INF, -INF, 2, INF, INF, NAN]])
    operands = (rows, rows.bfloat16(), torch.tensor([[1, 1, 0], [0, 0, 1]]), torch.tensor([[True, False, True]]))
    check_calls(call(op, x, 1) for op in (aten.cummax.default, aten.cummin.default) for x in operands)


def test_nan_and_infinity_reach_everything_behind_them_only() -> None:
    operand = torch.tensor([1.0, INF, 2.0, -INF, 3.0])
    other = torch.tensor([1.0, 2.0, NAN, 0.0])
    ops = (aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default)
    check_calls(call(op, x, 0) for op in ops for x in (operand, other))


def test_logcumsumexp_agrees_with_pytorch() -> None:
    operand = torch.randn(4, 6)
    extremes = torch.tensor([-INF, -INF, 1000.0, 1000.0, -1000.0])
    calls = [call(aten.logcumsumexp.default, x, 0) for x in (operand, operand.double(), extremes)]
    check_calls([*calls, call(aten._logcumsumexp.default, operand, -1)])


def test_logcumsumexp_of_complex_numbers_agrees_in_their_angles_too() -> None:
    numbers = torch.randn(3, 9, dtype=torch.complex64) * 3
    extremes = torch.tensor([complex(-INF, 1), complex(2, 1), complex(INF, 1), complex(1, 1), complex(NAN, 1), 1])
    check_calls([call(aten.logcumsumexp.default, x, -1) for x in (numbers, extremes, numbers[0, 0], numbers[:0])])


def test_logcumsumexp_of_narrow_floats_is_rounded_once() -> None:
    # PyTorch rounds after every element; ours is within one rounding of the exact value.
    operand = torch.randn(50).bfloat16()
    exact = torch.logcumsumexp(operand.double(), 0)
    got = apply_rule(aten.logcumsumexp.default, operand, 0).to(torch.bfloat16)
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("op", [aten.cumsum.default, aten.cummax.default, aten.logcumsumexp.default])
def test_ten_thousand_elements_compile_and_run_quickly(op: torch._ops.OpOverload) -> None:
    operand = torch.randn(10_000)
    start = time.process_time()
    check_rule(op, operand, 0, rtol=1e-5, atol=1e-4)  # a sum of 10,000 numbers in another order than PyTorch's
    assert time.process_time() - start < 10


@pytest.mark.parametrize("way", WAYS)
def test_one_number_keeps_its_sign_and_a_vector_is_added_to_zero(way: str) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [each.cumsum(0) for each in (x, x[0], x[:1])] + [x[0].cumprod(0), x[0].logcumsumexp(0)]

    check_signs(way, function, torch.tensor([-0.0, 0.0, -0.0]))
