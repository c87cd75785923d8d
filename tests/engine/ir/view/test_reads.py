"""Any view PyTorch can make is read out of its base, and the usual ones without looking up single elements."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.support import costs
from tests.support.views import NESTED, SLICING, ViewCase, apply_steps, geometry_of, permuted_geometry, view_cases
from torch_xla._engine.ir.view import Broadcast, Gather, Geometry, Pad, Reshape, Slice, Transpose, ViewOp, read


def check(case: ViewCase) -> tuple[ViewOp, ...]:
    steps = read(case.base, case.view)
    np.testing.assert_array_equal(apply_steps(steps, case.whole().numpy()), case.tensor.numpy(), strict=True)
    return steps


@given(view_cases())
@settings(max_examples=200, deadline=None)
def test_any_view_is_read_as_torch_shows_it(case: ViewCase) -> None:
    check(case)


@given(view_cases(smallest=0))
@settings(max_examples=150, deadline=None)
def test_any_view_of_a_storage_that_may_be_empty_is_read(case: ViewCase) -> None:
    check(case)


@given(view_cases(NESTED))
@settings(max_examples=200, deadline=None)
def test_views_that_show_no_element_twice_never_gather(case: ViewCase) -> None:
    assert not any(isinstance(step, Gather) for step in check(case))


@pytest.mark.slow
@given(view_cases(SLICING))
@settings(max_examples=400, deadline=None)
def test_slices_permutations_and_reshapes_never_gather_nor_pad(case: ViewCase) -> None:
    assert not any(isinstance(step, Gather | Pad) for step in check(case))


@pytest.mark.slow
@given(view_cases())
@settings(max_examples=250, deadline=None)
def test_no_step_is_idle_and_no_two_in_a_row_are_of_one_kind(case: ViewCase) -> None:
    array = case.whole().numpy()
    steps = read(case.base, case.view)
    for before, step in zip((None, *steps), steps, strict=False):
        after = apply_steps((step,), array)
        assert after.shape != array.shape or not np.array_equal(after, array) or _all_equal(array)
        assert type(before) is not type(step)
        array = after


def _all_equal(array: np.ndarray) -> bool:
    return array.size < 2 or bool((array == array.flat[0]).all())


def solved(base: torch.Tensor, view: torch.Tensor) -> tuple[type, ...]:
    steps = read(geometry_of(base), geometry_of(view))
    np.testing.assert_array_equal(apply_steps(steps, base.numpy()), view.numpy(), strict=True)
    return tuple(type(step) for step in steps)


def counting(*size: int) -> torch.Tensor:
    return torch.arange(torch.Size(size).numel()).view(size)


def channels_last(*size: int) -> torch.Tensor:
    return counting(*size).contiguous(memory_format=torch.channels_last)


def test_the_base_itself_needs_no_step() -> None:
    for base in (counting(4, 6), channels_last(2, 3, 4, 5), counting(), counting(0, 3), counting(4, 6).t()):
        assert solved(base, base) == ()
    assert read(Geometry((1, 3), (3, 1)), Geometry((1, 3), (99, 1))) == ()


def test_a_view_of_a_contiguous_base_takes_the_fewest_steps() -> None:
    x, image = counting(4, 6), counting(2, 3, 4, 5)
    assert solved(x, x.t()) == (Transpose,)
    assert solved(x, x.flatten()) == (Reshape,)
    assert solved(x, x.view(2, 2, 3, 2)) == (Reshape,)
    assert solved(x, x[:, None]) == (Reshape,)
    assert solved(x, x[1:3, 2:4]) == (Slice,)
    assert solved(x, x[::3, 1::2]) == (Slice,)
    assert solved(x, x[1]) == solved(x, x[:, 2]) == solved(x, x[1, 2]) == (Slice, Reshape)
    assert solved(x, x[1:3, 2:4].t()) == (Slice, Transpose)
    assert solved(x, x.view(2, 2, 6).transpose(0, 1)) == (Reshape, Transpose)
    assert solved(x, x.view(2, 2, 6)[:, 1]) == (Slice,)
    assert solved(x, x.view(-1)[3:21]) == (Reshape, Slice)
    assert solved(x, x.diagonal()) == (Reshape, Slice)
    assert solved(image, image[:, 1, :, 2]) == (Slice, Reshape)
    assert solved(image, image.flatten(2)[:, :, 3:]) == (Reshape, Slice)
    assert solved(image, image.diagonal(0, 2, 3)) == (Reshape, Slice)
    assert solved(image, image.permute(2, 0, 3, 1)) == (Transpose,)
    qkv = counting(2, 5, 3 * 4 * 8)
    heads = qkv.split(32, dim=2)[1].view(2, 5, 4, 8).transpose(1, 2)
    assert solved(qkv, heads) == (Reshape, Slice, Transpose)


def test_a_stretch_of_a_flat_base_is_sliced_before_it_is_reshaped() -> None:
    flat = counting(96)  # rows of 6, of 12 and of 4 fit, and begin where the views do
    assert solved(flat, flat[24:48].view(4, 6)) == (Slice, Reshape)
    assert solved(flat, flat[24:48].view(2, 2, 6)) == (Slice, Reshape)
    assert solved(flat, flat[24:48].view(4, 6).t()) == (Slice, Reshape, Transpose)
    assert solved(flat, flat[24:48]) == (Slice,)
    assert solved(flat, flat.view(16, 6)) == (Reshape,)


def test_repeated_dimensions_are_one_broadcast() -> None:
    row, column = counting(1, 6), counting(4, 1)
    assert solved(row, row.expand(3, 6)) == solved(column, column.expand(4, 5)) == (Broadcast,)
    assert solved(row, row.expand(2, 3, 6)) == solved(column, column[:, None].expand(4, 2, 5)) == (Broadcast,)
    assert solved(counting(), counting().expand(2, 3)) == (Broadcast,)
    x = counting(4, 6)
    assert solved(x, x[:, None].expand(4, 3, 6)) == (Broadcast,)
    assert solved(x, x[:, 2:3].expand(4, 5)) == (Slice, Broadcast)
    assert solved(x, x[2].expand(5, 6)) == (Slice, Broadcast)
    assert solved(x, x[:, 2].expand(5, 4)) == (Slice, Reshape, Broadcast)
    assert solved(x, x.t()[:, None].expand(6, 3, 4)) == (Transpose, Broadcast)


def test_a_channels_last_base_is_reordered_only_where_its_dimensions_merge_across_others() -> None:
    image = channels_last(2, 3, 4, 5)
    assert solved(image, image.permute(0, 2, 3, 1)) == (Transpose,)
    assert solved(image, image[:, 1:3, ::2, 1]) == (Slice, Reshape)
    assert solved(image, image.flatten(2)) == (Reshape,)
    assert solved(image, image.permute(0, 2, 3, 1).reshape(-1, 3)) == (Transpose, Reshape)
    assert solved(image, image.permute(1, 0, 2, 3).flatten(1)) == (Transpose, Reshape)
    assert solved(image, image.as_strided((120,), (1,))) == (Transpose, Reshape)


def test_what_divides_no_dimension_is_sliced_first() -> None:
    ten, odd = counting(10), counting(7)
    assert solved(ten, ten.unfold(0, 3, 3)) == (Slice, Reshape)
    assert solved(ten, ten[1:].view(3, 3)) == (Slice, Reshape)
    assert solved(odd, odd[::2].view(2, 2)) == (Slice, Reshape)
    grid = counting(5, 6)
    inner = grid[1:, 2:]
    assert solved(grid, inner.as_strided((3, 4), (7, 1), inner.storage_offset())) == (Reshape, Slice, Reshape, Slice)
    merged = counting(40)
    assert solved(merged, merged.as_strided((2, 2, 3), (20, 4, 1), 1)) == (Reshape, Slice)
    square = counting(2, 20)
    assert solved(square, square.as_strided((2, 2, 3), (20, 4, 1), 1)) == (Reshape, Slice)


def test_windows_with_a_gap_past_the_end_are_padded() -> None:
    eight = counting(8)
    assert solved(eight, eight.unfold(0, 2, 3)) == (Pad, Reshape, Slice)
    cube = counting(3, 4, 3)
    assert solved(cube, cube.diagonal(0, 0, 2)) == (Reshape, Pad, Reshape, Slice, Transpose)


def test_overlapping_windows_are_gathered_once_however_often_they_repeat() -> None:
    x = counting(3, 10)
    assert solved(x, x.unfold(1, 4, 2)) == (Reshape, Gather)
    assert solved(x, x.unfold(1, 4, 2)[:, None].expand(3, 5, 4, 4)) == (Reshape, Gather, Broadcast)
    image = channels_last(2, 3, 4, 5)
    assert solved(image, image.as_strided((7, 5), (2, 1))) == (Transpose, Reshape, Gather)


def test_nothing_is_read_from_anything() -> None:
    for base in (counting(4, 6), counting(), counting(0, 2), counting(6, 4).t()):
        for size in [(0,), (2, 0), (0, 2), (3, 0, 2)]:
            solved(base, base.as_strided(size, (1,) * len(size), 3))
    x = counting(4, 6)
    assert solved(x, x[:0]) == solved(x, x[2:, 6:]) == (Slice,)


def test_a_view_past_the_end_of_its_storage_is_refused() -> None:
    with pytest.raises(ValueError, match="reaches past the end of a storage of 24 elements"):
        read(Geometry.contiguous((4, 6)), Geometry((4, 6), (6, 1), 1))


@pytest.mark.parametrize("base", [Geometry((4, 6), (7, 1)), Geometry((4, 6), (6, 1), 1), Geometry((4, 6), (1, 1))])
def test_a_base_that_is_not_a_whole_storage_is_refused(base: Geometry) -> None:
    with pytest.raises(ValueError, match="must be dense, with offset 0"):
        read(base, Geometry((2, 3), (3, 1)))


def test_a_usual_view_is_solved_in_microseconds() -> None:
    base, view = Geometry.contiguous((8, 12, 16, 64)), Geometry((8, 16, 12, 64), (12288, 64, 1024, 1))
    last = permuted_geometry((8, 3, 32, 32), (0, 2, 3, 1))

    def two() -> None:
        read(base, view)
        read(last, Geometry((8, 3, 16, 32), last.stride, 96))

    assert costs.in_calls(two, 10) < 2 * 3500  # 700 each, which is 25 µs: a view is solved while the program runs
