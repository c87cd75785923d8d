"""The size behind a step is known without an array."""

import numpy as np
import pytest
from hypothesis import given, settings

from tests.support.views import ViewCase, apply_steps, view_cases
from torch_xla._engine.ir.view import Broadcast, Gather, Geometry, Pad, Reshape, Slice, Transpose, ViewOp, read
from torch_xla._engine.ir.view.view_ops import size_after

STEPS: list[tuple[tuple[int, ...], ViewOp]] = [
    ((2, 6), Reshape((3, 4))),
    ((2, 3, 4), Transpose((2, 0, 1))),
    ((7, 5), Slice((1, 0), (7, 5), (3, 2))),
    ((7,), Slice((3,), (3,), (2,))),
    ((2, 3), Pad((2, 5))),
    ((1, 3), Broadcast((4, 5, 3), (0, 2))),
    ((12,), Gather(Geometry((2, 3), (5, 1), 1))),
]


@pytest.mark.parametrize(("size", "step"), STEPS, ids=[type(step).__name__ for _, step in STEPS])
def test_it_is_that_of_the_array(size: tuple[int, ...], step: ViewOp) -> None:
    assert size_after(size, step) == apply_steps((step,), np.zeros(size)).shape


@given(view_cases())
@settings(max_examples=40)
def test_steps_that_follow_each_other_end_in_the_size_of_the_view(case: ViewCase) -> None:
    size = case.base.size
    for step in read(case.base, case.view):
        size = size_after(size, step)
    assert size == case.view.size
