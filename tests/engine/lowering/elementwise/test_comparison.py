"""Comparisons, extremes and tests for infinities and NaN agree with PyTorch on the CPU."""

import pytest
import torch

from tests.support.rule_table import call, check_calls
from tests.support.values import FLOATS, INF, NAN, edge_values, grid
from torch_xla._engine.lowering.elementwise.comparison import TESTS

aten = torch.ops.aten

ORDER = [aten.lt, aten.le, aten.gt, aten.ge]
EQUALITY = [aten.eq, aten.ne]
EXTREMES = [aten.maximum.default, aten.minimum.default, aten.fmax.default, aten.fmin.default]
REALS = [*FLOATS, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", REALS)
def test_comparisons_and_extremes_agree_everywhere(dtype: torch.dtype) -> None:
    calls = [call(packet.Tensor, *grid(dtype)) for packet in [*ORDER, *EQUALITY]]
    check_calls([*calls, *(call(op, *grid(dtype)) for op in EXTREMES)])


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("changing", [False, True])
def test_a_number_is_rounded_to_the_dtype_it_is_compared_in(dtype: torch.dtype, changing: bool) -> None:
    operand = edge_values(dtype)
    calls = [call(packet.Scalar, operand, number) for packet in [*ORDER, *EQUALITY] for number in (2, 0.1)]
    check_calls(calls, changing=changing)


def test_complex_numbers_are_equal_or_not() -> None:
    calls = [call(packet.Tensor, *grid(torch.complex64)) for packet in EQUALITY]
    check_calls([*calls, call(aten.eq.Scalar, edge_values(torch.complex64), 1j)])


def test_operands_of_two_dtypes_meet_in_a_third() -> None:
    one, other = torch.tensor([-1, 100, 3], dtype=torch.int8), torch.tensor([255, 100, 3], dtype=torch.uint8)
    calls = [call(packet.Tensor, one, other) for packet in [*ORDER, *EQUALITY]]
    check_calls([*calls, call(aten.maximum.default, one, torch.tensor(2.5))])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8])
@pytest.mark.parametrize("changing", [False, True])
def test_clamping_agrees_everywhere(dtype: torch.dtype, changing: bool) -> None:
    operand = edge_values(dtype)
    calls = [call(aten.clamp.default, operand, low, high) for low, high in ((-1, 2), (None, 2), (1, None), (3, 1))]
    calls += [call(aten.clamp.default, operand, 0.1, 2.7)]
    calls += [call(aten.clamp_min.default, operand, 1), call(aten.clamp_max.default, operand, 2.5)]
    check_calls(calls, changing=changing)


def test_clamping_between_tensors_lets_nan_through() -> None:
    one, other = grid(torch.float32)
    bound = torch.tensor([NAN, INF, 1.0])
    check_calls(
        [
            call(aten.clamp.Tensor, one, other, other.flip(1)),
            call(aten.clamp.Tensor, one, None, bound),
            call(aten.clamp.Tensor, one, bound.double()),
            # In PyTorch 2.11, a number that is none bounds nothing.
            *([call(aten.clamp.default, one, NAN)] if torch.ones(9).clamp(NAN).isnan().all() else []),
            call(aten.clamp_min.Tensor, one, other),
            call(aten.clamp_max.Tensor, one, torch.tensor(2)),
            call(aten.clamp_max.default, torch.tensor([True, False]), 2),
        ]
    )


@pytest.mark.parametrize("dtype", [*REALS, torch.complex64])
def test_no_integer_is_infinite_or_nan(dtype: torch.dtype) -> None:
    operand = edge_values(dtype)
    if dtype.is_complex:
        operand = torch.tensor([complex(INF, 0), complex(0, -INF), complex(NAN, 1), 1 + 1j])
    operators = [aten.isinf.default, aten.isnan.default] if dtype.is_complex else list(TESTS)
    check_calls([*(call(op, operand) for op in operators), *(call(op, operand[0]) for op in operators)])
