"""Overlap is judged as PyTorch judges it, for its errors about in-place writes depend on it."""

import pytest
import torch
from hypothesis import given, settings

from tests.support.views import ViewCase, geometry_of, view_cases
from torch_xla._engine.ir.view import InternalOverlap, Overlap, has_internal_overlap, overlap_between

TORCH_SAYS = {0: InternalOverlap.NO, 1: InternalOverlap.YES, 2: InternalOverlap.TOO_HARD}


@given(view_cases(smallest=0))
@settings(max_examples=150, deadline=None)
def test_internal_overlap_is_what_torch_says(case: ViewCase) -> None:
    assert has_internal_overlap(case.view) is TORCH_SAYS[torch._debug_has_internal_overlap(case.tensor)]


@given(view_cases(smallest=0))
@settings(max_examples=100, deadline=None)
def test_torch_refuses_an_in_place_write_exactly_where_overlap_is_sure(case: ViewCase) -> None:
    if has_internal_overlap(case.view) is InternalOverlap.YES:
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            case.tensor.zero_() if case.tensor.numel() == 0 else case.tensor.add_(1)
    else:
        case.tensor.add_(1)


def test_two_views_overlap_as_torch_finds_when_one_is_written_from_the_other() -> None:
    x = torch.zeros(12)
    for a, b, expected in [
        (x[:4], x[4:8], Overlap.NO),
        (x[:4], x[3:7], Overlap.PARTIAL),
        (x[:4], x[:4], Overlap.FULL),
        (x[:4].view(2, 2), x[:4].view(2, 2).t(), Overlap.PARTIAL),
        (x[::2], x[1::2], Overlap.TOO_HARD),
        (x[:4], x[0:0], Overlap.NO),
        (x[:0:1], x[::2], Overlap.NO),
    ]:
        assert overlap_between(geometry_of(a), geometry_of(b)) is expected
        assert overlap_between(geometry_of(b), geometry_of(a)) is expected
        if a.shape == b.shape:
            assert (expected is Overlap.PARTIAL) == _torch_refuses(a, b)


def _torch_refuses(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        torch.neg(a, out=b)
    except RuntimeError as error:
        assert "the written-to tensor refer to a single memory location" in str(error)
        return True
    return False
