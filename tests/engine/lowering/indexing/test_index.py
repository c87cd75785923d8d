"""Indexing with tensors agrees with PyTorch on the CPU."""

import pytest
import torch

import torch_xla._engine.lowering.indexing.index  # noqa: F401
from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule

aten = torch.ops.aten

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]

ROW, COLUMN = torch.tensor([2, 0, -1]), torch.tensor([[1], [-2]])
INDICES = {
    "one": [ROW],
    "one in the middle": [None, ROW],
    "two side by side": [ROW, COLUMN],
    "two side by side, not in front": [None, ROW, COLUMN],
    "two apart": [ROW, None, COLUMN],
    "all": [ROW, COLUMN, torch.tensor(1), torch.tensor([0])],
    "a number beside a vector": [None, torch.tensor(-1), ROW],
    "a number apart from a vector": [torch.tensor(1), None, ROW],
    "a number alone": [None, torch.tensor(2)],
    "narrow integers": [ROW.int(), None, ROW.int()],
    "empty": [None, torch.zeros(0, dtype=torch.int64)],
    "empty, of two dimensions": [torch.zeros(2, 0, dtype=torch.int64), torch.tensor(1)],
}


def operand(dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(3, 4, 5, 2) * 4).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_have_the_shape_that_pytorch_gives_them(dtype: torch.dtype) -> None:
    given = operand(dtype)
    check_calls(call(op, given, indices) for indices in INDICES.values() for op in (aten.index.Tensor,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_writes_reach_the_places_that_reads_see(dtype: torch.dtype, accumulate: bool) -> None:
    given = operand(dtype)
    calls = []
    for indices in INDICES.values():
        shape = aten.index.Tensor(given, indices).shape
        values = torch.arange(1, shape.numel() + 1).reshape(shape).to(dtype)
        calls.append(call(aten.index_put.default, given, indices, values, accumulate))
        calls.append(call(aten.index_put.default, given, indices, torch.tensor(1).to(dtype), accumulate))
    check_calls(calls, rtol=2e-2 if dtype is torch.bfloat16 else None, atol=1e-2 if dtype is torch.bfloat16 else None)


def test_equal_indices_add_up() -> None:
    index = torch.tensor([1, 1, -2, 0, 1])
    for dtype in (torch.float32, torch.int64, torch.float64):
        values = torch.arange(1, 11).reshape(5, 2).to(dtype)
        check_calls([call(aten.index_put.default, torch.zeros(3, 2, dtype=dtype), [index], values, True)])
    ones = torch.ones(1000, dtype=torch.bfloat16)
    total = apply_rule(aten.index_put.default, torch.zeros(2).bfloat16(), [torch.zeros(1000).long()], ones, True)
    assert total[0] == 1000  # narrow floats add up in float32: in bfloat16 the sum would stay at 256


MASK = torch.tensor([[True, False, True], [False, True, True]])


def test_a_mask_is_written_through_for_values_of_every_shape() -> None:
    given, calls = torch.randn(2, 3, 4), []
    for accumulate in (False, True):
        for values in (torch.tensor(7.0), torch.tensor([7.0]), torch.randn(4), torch.randn(1, 4), torch.randn(4, 4)):
            calls.append(call(aten.index_put.default, given, [MASK], values, accumulate))
        for values in (torch.tensor(7.0), torch.randn(4), torch.randn(2, 2, 4), torch.randn(2, 1, 1)):
            calls.append(call(aten.index_put.default, given, [None, MASK[0]], values, accumulate))
        whole = torch.rand(2, 3, 4) > 0.5
        for values in (torch.tensor(7.0), torch.randn(int(whole.sum()))):
            calls.append(call(aten.index_put.default, given, [whole], values, accumulate))
    calls.append(call(aten.index_put.default, MASK, [MASK], torch.tensor(False), False))
    calls.append(call(aten.index_put.default, torch.zeros(3), [MASK[0] & False], torch.zeros(0), False))
    check_calls(calls)


def test_a_mask_that_decides_a_shape_is_refused() -> None:
    for op, args in [
        (aten.index.Tensor, (torch.randn(2, 3), [MASK])),
        (aten.index_put.default, (torch.randn(2, 3), [MASK[:, 0], torch.tensor([0])], torch.tensor(1.0))),
    ]:
        with pytest.raises(NotImplementedError):
            apply_rule(op, *args)


def test_indices_outside_read_the_nearest_element_and_write_nothing() -> None:
    given, index = torch.arange(4.0), torch.tensor([5, -7, 1])
    assert apply_rule(aten.index.Tensor, given, [index]).tolist() == [3, 0, 1]
    assert apply_rule(aten.index_put.default, given, [index], torch.ones(3), True).tolist() == [0, 2, 2, 3]
    assert apply_rule(aten.take.default, given, index).tolist() == [3, 0, 1]


def test_unsafe_indexing_ignores_what_the_mask_hides() -> None:
    given, mask = torch.randn(4, 3), torch.tensor([True, False, True])
    index = torch.tensor([1, 9, -1])
    values = torch.randn(3, 3)
    got = apply_rule(aten._unsafe_masked_index_put_accumulate.default, given, mask[:, None], [index], values)
    expected = given.index_put([index[mask]], values[mask], accumulate=True)
    torch.testing.assert_close(got, expected)
    check_calls(
        [
            call(aten._unsafe_index.Tensor, given, [ROW]),
            call(aten._unsafe_index_put.default, given, [ROW], values),
            call(aten._unsafe_masked_index.default, given, mask, [index, index.clamp(0, 2)], 7),
            call(aten._unsafe_masked_index.default, torch.zeros(0), mask & False, [index], 7),
        ]
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_fill_and_broadcast_both_ways(dtype: torch.dtype) -> None:
    given = operand(dtype)
    masks = [torch.rand(shape) > 0.5 for shape in ((4, 5, 2), (), (3, 1, 1, 2), (2, 3, 4, 5, 2))]
    calls = [call(aten.masked_fill.Scalar, given, mask, 1) for mask in masks]
    calls += [call(aten.masked_fill.Tensor, given, mask, torch.tensor(1).to(dtype)) for mask in masks]
    if dtype.is_floating_point:
        numbers = (float("-inf"), float("nan"), -1e4)
        calls += [call(aten.masked_fill.Scalar, given, masks[0], number) for number in numbers]
    check_calls(calls)


def test_masked_places_take_the_elements_of_a_source_in_order() -> None:
    given, source = torch.randn(2, 3), torch.randn(3, 4)
    masks = (MASK, MASK[0], MASK & False, torch.ones(2, 2, 3).bool())
    calls = [call(aten.masked_scatter.default, given, mask, source) for mask in masks]
    calls.append(call(aten.masked_scatter.default, torch.zeros(0), torch.zeros(0).bool(), torch.zeros(0)))
    calls += [call(aten.masked_scatter_backward.default, given, mask, [3, 4]) for mask in masks[:3]]
    check_calls(calls)


def test_flat_indices_read_and_write() -> None:
    given, index = torch.randn(3, 4), torch.tensor([[11, -1, 0], [5, 5, -12]])
    source = torch.randn(2, 3)
    calls = [call(aten.take.default, given, index), call(aten.take.default, torch.tensor(3.0), torch.tensor([0, -1]))]
    calls += [call(aten.put.default, given, index[:, 1:2], source[:, 1:2], a) for a in (False, True)]
    calls.append(call(aten.put.default, given, index, source, True))
    check_calls([*calls, call(aten.take.default, given, torch.tensor(7))])


def test_numbers_to_fill_with_may_change_from_step_to_step() -> None:
    given, numbers = torch.randn(3, 4), torch.arange(12).reshape(3, 4)
    calls = [call(aten.masked_fill.Scalar, x, given > 0, 2) for x in (given, numbers)]
    calls += [call(aten.masked_fill.Scalar, x, given > 0, -1.5e4) for x in (given.bfloat16(), given)]
    calls.append(call(aten._unsafe_masked_index.default, given, given[:2, :1] > 0, [torch.tensor([1, 0])], 7.5))
    check_calls(calls, changing=True)
