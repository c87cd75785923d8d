"""A memory that is cut into axes shows a view as plain slices along them."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings

from tests.support.views import NESTED, ViewCase, permuted_geometry, shows_each_once, view_cases
from torch_xla._engine.ir.view import Geometry
from torch_xla._engine.ir.view.axes import NOT_DENSE, Axis, cut, is_nested, moving_dims, spans_of


def shown(array: np.ndarray, axes: list[Axis]) -> tuple[np.ndarray, list[int | None]]:
    """Return the elements that `axes` select in a flat array, and the view's dimension for each of the result."""
    dims: list[int | None] = []
    array = array.reshape([axis.size for axis in axes])
    for axis in axes:
        at = len(dims)
        array = array[(*[slice(None)] * at, slice(axis.start, axis.limit, axis.step))]
        if axis.padded:
            width = [(0, axis.padded - n if dim == at else 0) for dim, n in enumerate(array.shape)]
            array = np.pad(array, width, constant_values=-1)
        if not axis.parts:
            dims.append(axis.dim)
            continue
        rows = np.moveaxis(array, at, -1).reshape(-1, array.shape[at])
        inner = [shown(row, list(axis.parts)) for row in rows]
        rest = [*array.shape[:at], *array.shape[at + 1 :]]
        array = np.array([found for found, _ in inner]).reshape(*rest, *inner[0][0].shape)
        places = range(len(rest), array.ndim)
        array = np.moveaxis(array, list(places), [at + nth for nth in range(len(places))])
        dims += inner[0][1]
    return array, dims


@given(view_cases(NESTED))
@settings(max_examples=50)
def test_slices_along_the_axes_are_the_view(case: ViewCase) -> None:
    assume(0 not in case.view.size)  # such views are never cut
    dims, storage = moving_dims(case.view), case.storage.numpy()
    expected = case.tensor.squeeze().numpy()
    for dim, step in reversed(list(enumerate(case.tensor.squeeze().stride()))):
        expected = expected if step else expected.take(0, dim)
    for unit_steps in (False, True):
        groups = cut(case.base, case.view, dims, spans_of(dims), unit_steps=unit_steps)
        axes = [axis for group in groups for axis in group.axes]
        found, order = shown(storage, axes)
        found = found.reshape([n for n, dim in zip(found.shape, order, strict=True) if dim is not None])
        order = [dim for dim in order if dim is not None]
        np.testing.assert_array_equal(found.transpose(np.argsort(order)), expected)
        of_base = [dim for group in groups for dim in group.dims]
        assert of_base == [dim for _, _, dim in moving_dims(case.base)]


@given(view_cases())
@settings(max_examples=50)
def test_what_is_nested_shows_each_element_once_and_spans_what_it_says(case: ViewCase) -> None:
    dims = moving_dims(case.view)
    spans = spans_of(dims)
    assume(0 not in case.view.size)
    assert spans[0] == case.view.extent - case.view.offset and spans[-1] == 1
    repeats = any(n != 1 and not step for n, step in zip(case.view.size, case.view.stride, strict=True))
    if is_nested(dims, spans) and not repeats:
        assert shows_each_once(case.view)


def test_a_column_is_a_slice_with_a_step_or_an_axis_more() -> None:
    base, column = Geometry((4, 6), (6, 1)), Geometry((4,), (6,), 2)
    dims = moving_dims(column)
    (rows,), (columns,) = (group.axes for group in cut(base, column, dims, spans_of(dims), unit_steps=True))
    assert (rows, columns) == (Axis(4, 0, 4, 1, 0), Axis(6, 2, 3, 1, None))
    assert not rows.is_sliced() and columns.is_sliced()
    flat, every_other = Geometry((24,), (1,)), Geometry((12,), (2,), 1)
    dims = moving_dims(every_other)
    (group,) = cut(flat, every_other, dims, spans_of(dims), unit_steps=False)
    assert group.axes == [Axis(24, 1, 24, 2, 0)]
    (group,) = cut(flat, every_other, dims, spans_of(dims), unit_steps=True)
    assert group.axes == [Axis(12, 0, 12, 1, 0), Axis(2, 1, 2, 1, None)]


@pytest.mark.parametrize("base", [Geometry((4,), (2,)), Geometry((4,), (1,), 1), Geometry((2, 2), (1, 1))], ids=str)
def test_a_base_with_gaps_or_an_offset_is_refused(base: Geometry) -> None:
    view = Geometry((2,), (1,))
    with pytest.raises(ValueError, match=NOT_DENSE):
        cut(base, view, moving_dims(view), spans_of(moving_dims(view)), unit_steps=False)


def test_dimensions_are_told_from_outer_to_inner_in_memory() -> None:
    tensor = torch.empty(2, 3, 1, 4).permute(3, 0, 2, 1)
    assert moving_dims(Geometry(tuple(tensor.shape), tensor.stride())) == [(12, 2, 1), (4, 3, 3), (1, 4, 0)]
    assert moving_dims(permuted_geometry((2, 3), (1, 0))) == [(2, 3, 1), (1, 2, 0)]
