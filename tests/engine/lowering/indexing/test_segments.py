"""Reductions of consecutive elements, compared with PyTorch on the CPU."""

import pytest
import torch

from tests.support.rules import apply_rule, check_rule

aten = torch.ops.aten

REDUCTIONS = ["sum", "mean", "max", "min", "prod"]


@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segments_by_length_and_by_offset(reduce: str, initial: float | None) -> None:
    data = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    data[2, 1] = data[5, 0] = 0
    data[1, 2] = torch.nan
    lengths, offsets = torch.tensor([2, 0, 4, 1]), torch.tensor([0, 2, 2, 6, 7])
    op, backward = aten.segment_reduce.default, aten._segment_reduce_backward.default
    for form in ({"lengths": lengths}, {"offsets": offsets}):
        check_rule(op, data, reduce, initial=initial, unsafe=True, **form)
        output = op(data, reduce, initial=initial, unsafe=True, **form)
        check_rule(backward, output.nan_to_num(0, 0, 0).cos(), output, data, reduce, initial=initial, **form)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segments_of_a_batch(reduce: str) -> None:
    data = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([[2, 3], [5, 0]])
    check_rule(aten.segment_reduce.default, data, reduce, lengths=lengths, axis=1, unsafe=True, initial=1.0)
    empty = torch.zeros(2, 0, 3)
    nothing = torch.zeros(2, 1, dtype=torch.int64)
    check_rule(aten.segment_reduce.default, empty, reduce, lengths=nothing, axis=1, unsafe=True)


def test_equal_maxima_share_a_positive_gradient() -> None:
    data = torch.tensor([1.0, 1.0, 0.0, 2.0, 2.0])
    lengths = torch.tensor([3, 2])
    output = torch.tensor([1.0, 2.0])
    gradient = torch.tensor([1.0, -1.0])
    arguments = gradient, output, data, "max"
    ours = apply_rule(aten._segment_reduce_backward.default, *arguments, lengths=lengths)
    assert ours.tolist() == aten._segment_reduce_backward.default(*arguments, lengths=lengths).tolist()
