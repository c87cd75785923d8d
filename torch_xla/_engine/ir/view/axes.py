"""Split dense memory into axes so that every dimension of a view is a strided slice of one of them.

A dimension of size n and stride s needs the memory cut where its stride begins. A cut at B elements (memory becomes
[N / B, B]) is free of cost where the outer dimensions have strides divisible by B and what the inner ones show stays
within one row of B. Cuts between the base's own dimensions come first, for they need no reshape; then cuts anywhere.
Where no cut fits the whole memory, one fits a part of it: that part is sliced (or padded) first, then cut again.
"""

from math import gcd
from typing import NamedTuple

from .geometry import Geometry

NOT_DENSE = "the base of a view must be dense, with offset 0: it describes a whole storage"

# A dimension of a view or base that moves through memory: stride, size, and which dimension it is. A plain tuple,
# for views are solved while the user's program runs.
Strided = tuple[int, int, int]


class Axis(NamedTuple):
    """A stretch of `size` along one axis: sliced, then padded, then shown as a dimension or cut into `parts`."""

    size: int
    start: int
    limit: int
    step: int
    dim: int | None  # the dimension of the view; None for a single element that is no dimension, or for parts
    padded: int = 0  # the size to pad to after slicing; 0: not padded
    parts: tuple["Axis", ...] = ()

    def is_sliced(self) -> bool:
        """Return whether the dimension leaves out a part of the stretch before it."""
        return self.limit - self.start != self.size or self.step != 1


class AxisGroup(NamedTuple):
    """Dimensions of the base, neighbours in memory from outer to inner, that become `axes` together."""

    dims: tuple[int, ...]
    axes: list[Axis]


def moving_dims(view: Geometry) -> list[Strided]:
    """Return the dimensions of the view along which the element changes, from outer to inner in memory."""
    every = zip(view.stride, view.size, range(len(view.size)), strict=True)
    moving = [(stride, n, dim) for stride, n, dim in every if n != 1 and stride]
    moving.sort(reverse=True)
    return moving


def spans_of(dims: list[Strided]) -> list[int]:
    """Return for each dimension, and for none: from the first to the last element that it and the inner ones show."""
    spans = [1]
    for stride, n, _ in reversed(dims):
        spans.append(spans[-1] + (n - 1) * stride)
    spans.reverse()
    return spans


def is_nested(dims: list[Strided], spans: list[int]) -> bool:
    """Return whether each dimension steps over the extent of the inner ones, so that no element occurs twice."""
    return all([dim[0] >= span for dim, span in zip(dims, spans[1:], strict=True)])


def cut(base: Geometry, view: Geometry, dims: list[Strided], spans: list[int], *, unit_steps: bool) -> list[AxisGroup]:
    """Return axes for a view with nested `dims`; with `unit_steps` rather one axis more than a slice with a step above
    1.
    """
    if base.offset:
        raise ValueError(NOT_DENSE)
    memory = moving_dims(base)
    groups = _cut_between_dims(memory, base.numel, dims, spans, view.offset, unit_steps)
    if any([axis.parts for group in groups for axis in group.axes]):
        # A cut between the base's dimensions can spoil a cut further in, but never the reverse.
        axes = _cut_anywhere(base.numel, dims, view.offset, unit_steps)
        if not any(axis.parts for axis in axes):
            return [AxisGroup(tuple(dim for _, _, dim in memory), axes)]
    return groups


def _cut_between_dims(
    memory: list[Strided], total: int, dims: list[Strided], spans: list[int], offset: int, unit_steps: bool
) -> list[AxisGroup]:
    groups: list[AxisGroup] = []
    together: tuple[int, ...] = ()
    first, below = 0, total
    for row, n, dim in memory:
        if row * n != below:
            break
        below = row
        together += (dim,)
        last, fits = first, True
        while last < len(dims) and dims[last][0] >= row:
            fits = fits and dims[last][0] % row == 0
            last += 1
        if fits and offset % row + spans[last] <= row:
            axes = _cut_anywhere(total // row, _in_rows(dims[first:last], row), offset // row, unit_steps)
            groups.append(AxisGroup(together, axes))
            together, first, offset, total = (), last, offset % row, row
    if below != 1:
        raise ValueError(NOT_DENSE)
    return groups


def _in_rows(dims: list[Strided], row: int) -> list[Strided]:
    return dims if row == 1 else [(stride // row, n, dim) for stride, n, dim in dims]


def _cut_anywhere(total: int, dims: list[Strided], offset: int, unit_steps: bool) -> list[Axis]:
    if len(dims) < 2:
        return _axes_of_one(total, dims, offset, unit_steps)
    axes: list[Axis] = []
    spans = spans_of(dims)
    first, row = 0, total
    for last in range(1, len(dims)):
        row = gcd(row, dims[last - 1][0])
        if offset % row + spans[last] <= row:
            axes += _axes_of_one(total // row, _in_rows(dims[first:last], row), offset // row, unit_steps)
            first, offset, total = last, offset % row, row
    return axes + _axes_of_one(total, dims[first:], offset, unit_steps)


def _axes_of_one(total: int, dims: list[Strided], offset: int, unit_steps: bool) -> list[Axis]:
    """Return axes for a memory of `total` elements that no cut divides."""
    if not dims:
        return [Axis(total, offset, offset + 1, 1, None)]
    if len(dims) > 1:
        return _axes_in_parts(total, dims, offset, unit_steps)
    stride, n, dim = dims[0]
    if unit_steps and stride > 1 and total % stride == 0:
        row, column = divmod(offset, stride)
        return [Axis(total // stride, row, row + n, 1, dim), Axis(stride, column, column + 1, 1, None)]
    return [Axis(total, offset, offset + (n - 1) * stride + 1, stride, dim)]


def _axes_in_parts(total: int, dims: list[Strided], offset: int, unit_steps: bool) -> list[Axis]:
    """Slice the rows that the outermost dimension steps through out of the memory, to cut between rows."""
    step = gcd(*[dim[0] for dim in dims])
    row, phase = divmod(offset, step)
    if step == 1:
        return [_axis_of_rows(total, dims, offset, unit_steps)]
    if unit_steps and total % step == 0:
        axes = _cut_anywhere(total // step, _in_rows(dims, step), row, unit_steps)
        return [*axes, Axis(step, phase, phase + 1, 1, None)]
    # One slice with a step first: what it leaves may need no other one.
    count = (total - phase - 1) // step + 1
    axes = _cut_anywhere(count, _in_rows(dims, step), row, unit_steps)
    if len(axes) > 1:
        return [Axis(total, phase, total, step, None, 0, tuple(axes))]
    (axis,) = axes
    start, limit = phase + axis.start * step, phase + (axis.limit - 1) * step + 1
    return [axis._replace(size=total, start=start, limit=limit, step=step)]


def _axis_of_rows(total: int, dims: list[Strided], offset: int, unit_steps: bool) -> Axis:
    stride, n, dim = dims[0]
    span = spans_of(dims)[1]
    rows = n * stride
    # The column of the first element within its row: the rows must start and end within the memory, the inner
    # dimensions within a row. Past the end of the memory there may be padding.
    lowest, highest = max(0, offset + rows - total), min(stride - span, offset)
    if lowest <= highest:
        column = offset % stride if lowest <= offset % stride <= highest else lowest
    else:
        column = highest
    start = offset - column
    limit = min(start + rows, total)
    inner = _cut_anywhere(stride, dims[1:], column, unit_steps)
    return Axis(total, start, limit, 1, None, rows if limit - start < rows else 0, (Axis(n, 0, n, 1, dim), *inner))
