"""A write through any view changes its base as PyTorch changes it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.support.views import (
    NESTED,
    ViewCase,
    apply_steps,
    flat_index,
    geometry_of,
    permuted_geometry,
    region,
    shows_each_once,
    view_cases,
)
from torch_xla._engine.ir.view import (
    Geometry,
    InternalOverlap,
    Replace,
    Scatter,
    Slice,
    Unchanged,
    Update,
    Write,
    has_internal_overlap,
    write,
)


def apply_write(how: Write, base: np.ndarray | None, value: np.ndarray) -> np.ndarray:
    match how:
        case Unchanged():
            assert base is not None
            return base
        case Replace(steps):
            return apply_steps(steps, value)
        case Scatter(forward, view, backward):
            assert base is not None
            flat = apply_steps(forward, base).copy()
            flat[flat_index(view)] = value
            return apply_steps(backward, flat)
        case Update(forward, start, limit, step, inner, backward):
            assert base is not None
            array = apply_steps(forward, base).copy()
            where = region(start, limit, step)
            new = apply_write(inner, array[where].copy(), value)
            assert new.shape == array[where].shape
            array[where] = new
            return apply_steps(backward, array)


def check(case: ViewCase) -> Write:
    how = write(case.base, case.view)
    value = -2 - torch.arange(case.tensor.numel()).view(case.tensor.shape)
    got = apply_write(how, case.whole().numpy().copy(), value.numpy())
    case.tensor.copy_(value)
    np.testing.assert_array_equal(got, case.whole().numpy(), strict=True)
    return how


@given(view_cases(smallest=0))
@settings(max_examples=200, deadline=None)
def test_a_write_through_any_view_that_shows_each_element_once_reaches_its_base(case: ViewCase) -> None:
    if shows_each_once(case.view):
        check(case)


@given(view_cases())
@settings(max_examples=150, deadline=None)
def test_one_value_written_through_overlapping_windows_reaches_all_they_show(case: ViewCase) -> None:
    if has_internal_overlap(case.view) is InternalOverlap.YES:
        with pytest.raises(ValueError, match="shows elements more than once: it cannot be written to"):
            write(case.base, case.view)
        return
    value = torch.full(case.tensor.shape, -2)
    got = apply_write(write(case.base, case.view), case.whole().numpy().copy(), value.numpy())
    case.tensor.fill_(-2)
    np.testing.assert_array_equal(got, case.whole().numpy(), strict=True)


@given(view_cases(tuple(name for name in NESTED if name != "expand")))
@settings(max_examples=125, deadline=None)
def test_the_usual_views_never_scatter(case: ViewCase) -> None:
    pending = [check(case)]
    while pending:
        how = pending.pop()
        assert not isinstance(how, Scatter)
        if isinstance(how, Update):
            pending.append(how.value)


def test_a_view_of_the_whole_storage_replaces_it() -> None:
    base = permuted_geometry((2, 3, 4, 5), (0, 2, 3, 1))
    assert write(base, base) == Replace(())
    for view in [Geometry.contiguous((120,)), Geometry.contiguous((2, 4, 5, 3)), Geometry((3, 2, 20), (1, 60, 3))]:
        assert isinstance(write(base, view), Replace)


def test_a_region_with_steps_is_a_plain_region_of_a_reshaped_base_where_they_divide_it() -> None:
    x = torch.arange(24).view(4, 6)
    for view in [x[1:3, 2:4], x[2], x[:, 1], x[1::2], x[:, ::3], x[1:2, 1::2], x[::2, ::2].t()]:
        how = write(geometry_of(x), geometry_of(view))
        assert isinstance(how, Update) and isinstance(how.value, Replace)
        assert set(how.step) == {1}
    how = write(geometry_of(x), geometry_of(x[:, ::4]))
    assert how == Update((), (0, 0), (4, 5), (1, 4), Replace(()), ())


def test_a_region_that_no_reshape_reaches_is_updated_within_a_region() -> None:
    x = torch.arange(40)
    how = write(geometry_of(x), Geometry((3, 2), (7, 1), 3))
    assert isinstance(how, Update) and isinstance(how.value, Update)
    assert isinstance(how.value.value, Replace)


def test_a_write_past_the_end_through_padding_drops_the_padding() -> None:
    how = write(Geometry.contiguous((8,)), Geometry((3, 2), (3, 1)))
    assert isinstance(how, Update)
    assert how.backward[-1] == Slice((0,), (8,), (1,))


def test_nothing_written_changes_nothing() -> None:
    assert write(Geometry.contiguous((4, 6)), Geometry((0, 6), (6, 1), 24)) == Unchanged()


def test_a_repeated_element_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="shows elements more than once: it cannot be written to"):
        write(Geometry.contiguous((6,)), Geometry((3, 6), (0, 1)))
