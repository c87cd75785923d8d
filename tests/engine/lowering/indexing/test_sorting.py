"""Sorting and order statistics agree with PyTorch on the CPU."""

from typing import Any

import pytest
import torch

import torch_xla._engine.lowering.indexing.sorting  # noqa: F401
from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule

aten = torch.ops.aten

NAN, INF = float("nan"), float("inf")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]


def with_ties(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_sorting_keeps_the_order_of_equal_elements(dtype: torch.dtype) -> None:
    operand = with_ties(dtype, 4, 9, 3)
    calls = [call(aten.sort.stable, operand, stable=True, dim=d, descending=r) for d in (1, -1) for r in (False, True)]
    check_calls([*calls, call(aten.sort.default, operand, 0), call(aten.sort.default, operand, 1, True)])


def test_nan_is_sorted_as_the_largest_and_zeros_as_equal() -> None:
    operand = torch.tensor([[1.0, NAN, -INF, INF, -NAN, 2.0, 0.0, -0.0], [-0.0, 0.0, NAN, NAN, NAN, 1.0, 1.0, INF]])
    values = (operand, operand.double(), operand.bfloat16())
    check_calls(call(aten.sort.stable, x, stable=True, descending=r) for x in values for r in (False, True))


@pytest.mark.parametrize("operand", [torch.tensor(2.0), torch.zeros(0), torch.zeros(3, 0), torch.zeros(0, 3)], ids=str)
def test_tensors_without_dimensions_or_elements_are_sorted(operand: torch.Tensor) -> None:
    calls = [call(aten.sort.default, operand, dim) for dim in (0, -1)]
    check_calls([*calls, call(aten.topk.default, operand, min(1, operand.size(0)) if operand.dim() else 1, 0)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [True, False])
def test_topk_gives_the_extreme_elements_in_order(dtype: torch.dtype, largest: bool) -> None:
    # Without ties, for which PyTorch promises no order.
    operand = torch.stack([torch.randperm(20) - 5 for _ in range(3)]).to(dtype)
    calls = [call(aten.topk.default, operand, k, 1, largest) for k in (0, 1, 7, 20)]
    check_calls([*calls, call(aten.topk.default, operand, 1, 0, largest)] if dtype is not torch.uint8 else calls)


def test_topk_counts_nan_as_the_largest() -> None:
    operand = torch.tensor([1.0, NAN, -INF, INF, -NAN, 2.0])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for largest in (True, False):
            values, places = apply_rule(aten.topk.default, operand.to(dtype), 6, 0, largest)
            expected = aten.topk.default(operand.to(dtype), 6, 0, largest)[0]
            torch.testing.assert_close(values, expected, equal_nan=True)
            torch.testing.assert_close(operand.to(dtype)[places], expected, equal_nan=True)


def test_topk_of_equal_elements_points_at_them() -> None:
    operand = torch.tensor([[0.0, -0.0, 3, 3, 3], [1, 1, 1, 1, 1]])
    for largest in (True, False):
        values, places = apply_rule(aten.topk.default, operand, 4, 1, largest)
        assert torch.equal(values, aten.topk.default(operand, 4, 1, largest)[0])
        assert torch.equal(operand.gather(1, places), values)
        assert torch.equal(operand.gather(1, places).signbit(), values.signbit())
        assert all(len(set(row)) == 4 for row in places.tolist())


@pytest.mark.parametrize("dtype", DTYPES)
def test_order_statistics_agree_in_every_dtype(dtype: torch.dtype) -> None:
    operand = torch.stack([torch.randperm(12) for _ in range(4)]).to(dtype)
    calls = [call(aten.kthvalue.default, operand, k, 1, keepdim) for k in (1, 5, 12) for keepdim in (False, True)]
    for op in (aten.median, aten.nanmedian):
        calls += [call(op.dim, operand, dim, keepdim) for dim in (1, -1) for keepdim in (False, True)]
        calls.append(call(op.default, operand))
    check_calls(calls)


def test_medians_of_nan_are_nan_or_leave_it_out() -> None:
    operand = torch.tensor([[1.0, NAN, 3.0, NAN, 0.0], [4.0, 1.0, 2.0, 3.0, NAN]])
    nothing = torch.full((5,), NAN)
    calls = []
    for value in (operand, operand.double(), operand.bfloat16()):
        calls += [call(aten.median.dim, value, 1), call(aten.nanmedian.dim, value, 1, True)]
        calls += [call(aten.median.default, value), call(aten.nanmedian.default, value)]
    calls += [call(op.default, x) for op in (aten.median, aten.nanmedian) for x in (torch.zeros(0), nothing)]
    check_calls([*calls, call(aten.median.dim, nothing, 0)])


@pytest.mark.parametrize("op", [aten.median.dim, aten.nanmedian.dim, aten.mode.default])
def test_order_statistics_of_a_single_number_are_the_number(op: Any) -> None:
    check_calls(call(op, torch.tensor(3.0), dim, keepdim) for dim in (0, -1) for keepdim in (False, True))
    check_calls([call(aten.kthvalue.default, torch.tensor(3.0), 1)])


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_the_mode_is_the_smallest_of_the_most_frequent_and_its_last_place(dtype: torch.dtype) -> None:
    operand = with_ties(dtype, 5, 11, 3)
    check_calls(call(aten.mode.default, operand, dim, keepdim) for dim in (0, 1, -1) for keepdim in (False, True))


def test_nans_differ_from_each_other_and_are_a_mode_only_alone() -> None:
    # PyTorch's sort ignores NaN here, so its result depends on the positions of NaN.
    rows = torch.tensor([[1.0, NAN, 1.0, NAN, NAN], [NAN, NAN, NAN, NAN, NAN], [INF, INF, 2.0, -INF, NAN]])
    values, places = apply_rule(aten.mode.default, rows, 1)
    torch.testing.assert_close(values, torch.tensor([1.0, NAN, INF]), equal_nan=True)
    assert torch.equal(rows.gather(1, places[:, None])[:, 0].nan_to_num(), values.nan_to_num())


def test_nothing_has_no_median() -> None:
    with pytest.raises(IndexError, match="non-zero size"):
        torch.median(torch.ones(0, device="xla"), -1)
    with pytest.raises(IndexError, match="Expected reduction dim 0 to have non-zero size"):
        torch.nanmedian(torch.ones(0, 3, device="xla"), 0)
