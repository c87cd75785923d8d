"""Searches and histograms agree with PyTorch on the CPU."""

import pytest
import torch

import torch_xla._engine.lowering.indexing.search  # noqa: F401
from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule

aten = torch.ops.aten

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_insertion_points_agree_in_every_dtype(dtype: torch.dtype) -> None:
    sequence = torch.tensor([1, 3, 3, 3, 5, 8]).to(dtype)
    values = torch.tensor([[0, 1, 2, 3], [5, 6, 8, 9]]).to(dtype)
    calls = []
    for right in (False, True):
        calls.append(call(aten.searchsorted.Tensor, sequence, values, right=right))
        calls.append(call(aten.bucketize.Tensor, values, sequence, right=right, out_int32=True))
        calls += [call(aten.searchsorted.Scalar, sequence, 3, right=right)]
        calls += [call(aten.bucketize.Scalar, 5, sequence, right=right)]
    check_calls(calls)


def test_each_row_may_have_its_own_sequence() -> None:
    sequences = torch.randn(2, 3, 7).sort(-1).values
    values = torch.randn(2, 3, 4)
    unsorted = torch.randn(2, 3, 7)
    check_calls(
        [
            call(aten.searchsorted.Tensor, sequences, values, side="right"),
            call(aten.searchsorted.Tensor, sequences, values, side="left"),
            call(aten.searchsorted.Tensor, unsorted, values, sorter=unsorted.argsort(-1)),
        ]
    )


def test_a_number_between_integers_is_found_between_them() -> None:
    sequence = torch.tensor([1, 2, 3])
    check_calls([call(aten.searchsorted.Scalar, sequence, 2.5), call(aten.bucketize.Scalar, 2.5, sequence.float())])


def test_searches_agree_on_nan_infinity_and_nothing() -> None:
    values = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 2.0])
    sequences = (torch.tensor([-INF, 0.0, 1.0, NAN, NAN]), torch.tensor([0.0, INF]), torch.zeros(0), torch.zeros(1))
    check_calls(
        call(aten.searchsorted.Tensor, sequence, given, right=right)
        for sequence in sequences
        for given in (values, torch.zeros(0), torch.tensor(0.5) if sequence.dim() == 1 else values)
        for right in (False, True)
    )


def test_long_sequences_are_searched() -> None:
    sequence = torch.randn(1000).sort().values
    values = torch.cat([sequence[::3], torch.randn(100)])
    check_calls(call(aten.searchsorted.Tensor, sequence, values, right=right) for right in (False, True))


def test_repeats_of_known_total_need_no_look_at_their_values() -> None:
    repeats = torch.tensor([2, 0, 3, 1])
    check_calls([call(aten.repeat_interleave.Tensor, repeats, output_size=6)])
    check_calls([call(aten.repeat_interleave.Tensor, repeats.int(), output_size=6)])
    with pytest.raises(NotImplementedError):
        apply_rule(aten.repeat_interleave.Tensor, repeats)


@pytest.mark.parametrize("tests", [5, 300])
def test_membership_agrees_for_few_and_for_many_candidates(tests: int) -> None:
    elements = torch.randint(0, 400, (4, 50))
    candidates = torch.randint(0, 400, (tests,))
    halves = candidates.float() / 2
    halves[0] = NAN
    calls = [call(aten.isin.Tensor_Tensor, elements, x, invert=i) for x in (candidates, halves) for i in (False, True)]
    calls.append(call(aten.isin.Tensor_Tensor, halves, halves.reshape(-1, 5)))
    calls.append(call(aten.isin.Tensor_Tensor, halves, torch.zeros(0)))
    check_calls(calls)


def test_a_number_may_stand_on_either_side_of_a_membership() -> None:
    elements = torch.tensor([[1, 2], [3, 2]])
    check_calls([call(aten.isin.Tensor_Scalar, elements, 2), call(aten.isin.Scalar_Tensor, 2, elements)])


def test_nonzero_places_are_padded_or_cut_to_the_given_size() -> None:
    operand = torch.tensor([[0, 1, 2], [3, 0, 0]])
    calls = [call(aten.nonzero_static.default, x, size=size) for x in (operand, operand[0] > 0) for size in (0, 2, 5)]
    check_calls([*calls, call(aten.nonzero_static.default, operand, size=5, fill_value=7)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histograms_count_what_lies_in_their_range(dtype: torch.dtype) -> None:
    operand = torch.tensor([0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0, -1.0, 0.9], dtype=dtype)
    weight = torch.rand(9, dtype=dtype)
    edges = torch.tensor([-0.5, 0.1, 0.5, 1.0], dtype=dtype)
    check_calls(
        [
            call(aten.histc.default, operand, 4),
            call(aten.histc.default, operand, 4, 0, 1),
            call(aten.histc.default, operand, 7, -2.5, 0.5),
            call(aten.histc.default, torch.full((3, 2), 2.0, dtype=dtype), 4),
            call(aten.histc.default, torch.zeros(0, dtype=dtype), 3),
            call(aten.histogram.bin_ct, operand, 4),
            call(aten.histogram.bin_ct, operand, 4, range=[0.0, 1.0], density=True),
            call(aten.histogram.bin_ct, operand, 5, range=[0.0, 2.0], weight=weight),
            call(aten.histogram.bins_tensor, operand, edges),
            call(aten.histogram.bins_tensor, operand, edges[:2], weight=weight, density=True),
        ]
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_histograms_of_integers_count_by_expert(dtype: torch.dtype) -> None:
    # On CUDA alone in PyTorch: a mixture of experts counts its tokens so.
    experts = torch.tensor([3, 0, 3, 7, 1, 0, 3, 9], dtype=dtype)
    counted = torch.histc(experts.to("xla"), bins=8, min=0, max=7)
    assert counted.dtype is dtype
    assert counted.tolist() == torch.bincount(experts.long(), minlength=10)[:8].tolist()
    assert torch.histc(experts.to("xla"), bins=3).tolist() == [3, 3, 2]  # of the range 0 to 9
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.histc(torch.ones(2, dtype=torch.bool, device="xla"))


def test_histograms_of_many_numbers_agree() -> None:
    operand = torch.randn(50, 40)
    check_calls([call(aten.histc.default, operand, 20, -2, 2), call(aten.histogram.bin_ct, operand, 20)])


def test_the_number_looked_for_may_change_from_step_to_step() -> None:
    sequence, operand = torch.tensor([1, 2, 3]), torch.randn(4, 5)
    check_calls(
        [
            call(aten.searchsorted.Scalar, sequence, 2),
            call(aten.searchsorted.Scalar, sequence, 1.5, right=True),
            call(aten.bucketize.Scalar, 0.3, torch.tensor([0.1, 0.5, 1.0])),
            call(aten.isin.Tensor_Scalar, sequence, 2),
            call(aten.isin.Scalar_Tensor, 2.5, operand),
            call(aten.histc.default, operand, 5, -1, 1.5),
            call(aten.histc.default, operand, 5, 0, 0),
        ],
        changing=True,
    )


def test_the_range_of_one_value_is_widened() -> None:
    operand = torch.tensor([3.0, 3.0])
    calls = [call(aten.histogram.bin_ct, operand, bins) for bins in (1, 2, 3)]
    calls.append(call(aten.histogram.bin_ct, operand, 2, range=[3.0, 3.0], density=True))
    check_calls(
        [*calls, call(aten.histogram.bin_ct, operand, 2, range=[1.0, 1.0]), call(aten.histc.default, operand, 3)]
    )
