"""Views of one size and strides are read by one chain of steps, whose starts follow from where each begins."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.support.views import NESTED, ViewCase, view_cases
from torch_xla._engine.ir.view import Gather, Geometry, Slice, is_moved, starts_at
from torch_xla._engine.ir.view.dynamic_start import at_start
from torch_xla._engine.ir.view.reads import steps_between


@given(view_cases(NESTED))
@settings(max_examples=80, deadline=None)
def test_a_moved_view_takes_the_steps_of_that_at_the_start(case: ViewCase) -> None:
    base, view = case.base, case.view
    for unit_steps in (False, True):
        if not is_moved(base, view, unit_steps=unit_steps):
            continue
        found, first = (steps_between(base, each, unit_steps=unit_steps) for each in (view, at_start(view)))
        assert len(found) == len(first)
        for step, other in zip(found, first, strict=True):
            if isinstance(step, Slice):
                assert starts_at(base, first, view.offset) == step.start
                assert isinstance(other, Slice) and other.step == step.step and not any(other.start)
            else:
                assert step == (replace(step, view=view) if isinstance(step, Gather) else other)


ROWS, BOARD, SWAPPED = Geometry.contiguous((10, 4)), Geometry.contiguous((6, 5, 4)), Geometry((4, 10), (1, 4))


@pytest.mark.parametrize(
    ("base", "view", "starts"),
    [
        (ROWS, Geometry((4,), (1,), 28), (7, 0)),  # x[7]
        (ROWS, Geometry((10,), (4,), 3), (0, 3)),  # x[:, 3]
        (ROWS, Geometry((), (), 30), (7, 2)),  # x[7, 2]
        (ROWS, Geometry((3, 2), (4, 1), 21), (5, 1)),  # x[5:8, 1:3]
        (ROWS, Geometry((3, 4), (8, 1), 12), (3, 0)),  # x[3:9:2]
        (ROWS, Geometry((4, 3), (1, 4), 20), (5, 0)),  # x[5:8].t()
        (BOARD, Geometry((6, 4), (20, 1), 8), (0, 2, 0)),  # x[:, 2]
        (BOARD, Geometry((7,), (1,), 50), (2, 10)),  # seven elements across rows
        (BOARD, Geometry((25,), (1,), 50), (50,)),  # more than a row of rows
        (SWAPPED, Geometry((4,), (1,), 12), (0, 3)),  # a column of a tensor that is transposed in memory
    ],
)
def test_an_index_or_a_range_is_a_place_that_can_move(base: Geometry, view: Geometry, starts: tuple[int, ...]) -> None:
    assert is_moved(base, view, unit_steps=False)
    assert starts_at(base, steps_between(base, at_start(view), unit_steps=False), view.offset) == starts


def test_what_lies_across_rows_is_read_by_other_steps_than_at_the_start() -> None:
    assert not is_moved(BOARD, Geometry((7,), (1,), 17), unit_steps=False)


def test_what_shows_all_or_nothing_has_no_place() -> None:
    for view in (ROWS, Geometry((4, 10), (1, 4)), Geometry((40,), (1,)), Geometry((0, 4), (4, 1), 8)):
        assert not is_moved(ROWS, view, unit_steps=False)
    row = Geometry.contiguous((1, 4))
    assert not is_moved(row, Geometry((4,), (1,)), unit_steps=False)  # x[0] of one row
