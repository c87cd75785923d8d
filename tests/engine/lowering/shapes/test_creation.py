"""Tensors made from numbers have PyTorch's lengths, dtypes and values."""

from typing import Any

import pytest
import torch

from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule
from tests.support.values import edge_values

aten = torch.ops.aten

DTYPES = [
    None,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
# In the narrow dtypes PyTorch rounds the steps, we only round the result; near zero that is a difference.
EXACT_STEPS = [dtype for dtype in DTYPES if dtype not in (torch.bfloat16, torch.float16)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_filled_tensors(dtype: torch.dtype | None) -> None:
    numbers = [0, 1, True, 2.7, -3, 5] if dtype is not torch.uint8 else [0, 1, True, 2.7, 5]
    like = torch.ones(2, 2, dtype=torch.int32)
    calls = [call(aten.full.default, [2, 3], number, dtype=dtype) for number in numbers]
    calls += [
        call(aten.zeros.default, [2, 0], dtype=dtype),
        call(aten.ones.default, [], dtype=dtype),
        call(aten.scalar_tensor.default, 3, dtype=dtype),
        call(aten.full_like.default, like, 2.7, dtype=dtype),
        call(aten.zeros_like.default, like, dtype=dtype),
        call(aten.ones_like.default, like, dtype=dtype),
        call(aten.new_full.default, like, [3], 2, dtype=dtype),
        call(aten.new_zeros.default, like, [3], dtype=dtype),
        call(aten.new_ones.default, like, [], dtype=dtype),
        call(aten.eye.default, 3, dtype=dtype),
        call(aten.eye.m, 2, 4, dtype=dtype),
        call(aten.eye.m, 0, 4, dtype=dtype),
    ]
    check_calls(calls)
    check_calls(calls[:1], changing=True)


@pytest.mark.parametrize("number", [True, 1, 2.5, 1j])
def test_the_number_gives_the_dtype(number: Any) -> None:
    assert apply_rule(aten.full.default, [2], number).dtype == torch.full((2,), number).dtype


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d])
def test_values_may_be_filled_in(dtype: torch.dtype) -> None:
    operand = edge_values(dtype)
    fills = [call(aten.fill.Scalar, operand, 2), call(aten.fill.Tensor, operand, torch.tensor(2.7))]
    check_calls([*fills, call(aten.zero.default, operand)])
    check_calls(fills[:1], changing=True)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not torch.bool and d is not torch.complex64])
def test_ranges_have_the_length_of_their_dtype(dtype: torch.dtype | None) -> None:
    calls = [call(aten.arange.default, end, dtype=dtype) for end in (5, 0, 3.5)]
    calls += [call(aten.arange.start, *ends, dtype=dtype) for ends in ((2, 7), (2.7, 6), (3, 3))]
    steps = [(0, 10, 3), (0, 10, 2.5), (0, 200, 7)]
    if dtype is not torch.uint8:
        steps += [(5, 2, -1), (0, -6, -1.9)]
    if dtype not in (torch.int64, torch.uint8):
        steps += [(0, 1, 0.1), (1, 2, 0.3)]
    calls += [call(aten.arange.start_step, *step, dtype=dtype) for step in steps]
    check_calls(calls)


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize("dtype", [None, torch.float64, torch.int64])
def test_ranges_that_include_their_end(dtype: torch.dtype | None) -> None:
    calls = [call(aten.range.default, 0, 3, dtype=dtype), call(aten.range.step, 5, 1, -2, dtype=dtype)]
    if dtype is not torch.int64:
        calls.append(call(aten.range.step, 0, 3, 0.7, dtype=dtype))
    check_calls(calls)


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_subnormal_numbers_are_counted_and_spaced_as_on_the_cpu() -> None:
    check_calls([call(aten.range.step, 0, 1e-39, 2e-40, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)])
    ends = [(0, 1e-40, 7), (-1e-39, 1e-38, 8), (1e-39, 1.0, 5), (3e-40, 3e-40, 1)]
    calls = [call(aten.linspace.default, *each, dtype=d) for each in ends for d in (torch.float32, torch.bfloat16)]
    check_calls([*calls, call(aten.linspace.default, 0, 1e-310, 7, dtype=torch.float64)], rtol=0, atol=0)


def test_great_integers_are_counted_exactly() -> None:
    check_calls([call(aten.arange.start_step, 2**60, 2**60 + 3, 1), call(aten.arange.default, True)])


@pytest.mark.parametrize("dtype", EXACT_STEPS)
def test_evenly_spaced_numbers_meet_both_ends(dtype: torch.dtype | None) -> None:
    ends = [(0, 10, 7), (-5.5, 10, 7), (3, 10, 1), (3, 10, 0), (0, 1, 101), (3, 3, 4), (10, -3, 50), (0, 200, 301)]
    if dtype is torch.uint8:
        ends = [each for each in ends if each[0] >= 0 and each[1] >= 0]
    if dtype is torch.bool:
        ends = []
    calls = [call(aten.linspace.default, *each, dtype=dtype) for each in ends]
    if dtype is not torch.bool:
        first, last = torch.tensor(1.5), torch.tensor(7)
        calls += [
            call(aten.linspace.Tensor_Tensor, first, last, 6, dtype=dtype),
            call(aten.linspace.Tensor_Scalar, first, 7, 6, dtype=dtype),
            call(aten.linspace.Scalar_Tensor, 0, last, 6, dtype=dtype),
            # A step of -49 / 49 is -1, also where the division is the compiler's.
            call(aten.linspace.Scalar_Tensor, 50, torch.tensor(1), 50, dtype=dtype),
            call(aten.logspace.Tensor_Tensor, torch.tensor(0.0), torch.tensor(2.0), 6, dtype=dtype),
        ]
        calls += [call(aten.logspace.default, *each, dtype=dtype) for each in ((0, 2, 7), (0, 3, 4, 2.0), (0, 1, 0))]
    check_calls(calls)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_steps_are_the_rounded_truth(dtype: torch.dtype) -> None:
    got = apply_rule(aten.linspace.default, -5.5, 10, 78, dtype=dtype)
    exact = torch.linspace(-5.5, 10, 78, dtype=torch.float64)
    torch.testing.assert_close(got.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_complex_numbers_may_be_spaced() -> None:
    check_calls([call(aten.linspace.default, 0, 1 + 1j, 5), call(aten.full.default, [2], 1j)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_ends_that_are_not_finite_spoil_their_own_part_of_each_number_alone(dtype: torch.dtype) -> None:
    inf, nan = float("inf"), float("nan")
    ends: list[tuple[complex, complex]] = [(nan, 1), (1, nan), (inf, 1), (1, inf), (-inf, inf), (inf, inf)]
    if dtype.is_complex:
        ends += [(complex(nan, 0), 1j), (1j, complex(0, nan)), (complex(1, inf), 2)]
    check_calls([call(aten.linspace.default, *each, n, dtype=dtype) for each in ends for n in (1, 2, 5)])
    check_calls([call(aten.logspace.default, 1, end, 1, dtype=dtype) for end in (inf, nan)])


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (2, 4), (4, 2), (0, 4), (4, 0), (5, 7)])
def test_triangles_are_listed_row_by_row(rows: int, columns: int) -> None:
    for offset in (-3, -1, 0, 1, 2, 9):
        check_calls(
            [
                call(aten.tril_indices.default, rows, columns, offset),
                call(aten.triu_indices.default, rows, columns, offset, dtype=torch.int32),
            ]
        )
