"""Find the shortest chain of steps that reads a view out of the value of its storage."""

from collections.abc import Sequence

from .axes import Axis, AxisGroup, cut, is_nested, moving_dims, spans_of
from .geometry import Geometry
from .view_ops import Broadcast, Gather, Pad, Reshape, Slice, Transpose, ViewOp, size_after


def read(base: Geometry, view: Geometry) -> tuple[ViewOp, ...]:
    """Return the steps from an array of `base.size`, the value of a whole storage, to the elements that `view` shows.

    `base` is dense with offset 0: it gives the order of the array's elements in the storage.
    """
    return steps_between(base, view, unit_steps=False)


def steps_between(base: Geometry, view: Geometry, *, unit_steps: bool) -> tuple[ViewOp, ...]:
    """Do as `read`; with `unit_steps` a slice has a step above 1 only where no reshape gives it a step of 1."""
    if base.same_elements(view):
        return ()
    if 0 in view.size:
        return _read_nothing(base, view)
    if view.extent > base.numel:
        raise ValueError(f"{view} reaches past the end of a storage of {base.numel} elements")
    if len(base.size) == 1 and view.numel < base.numel and view.is_dense():
        return _read_stretch(base, view)
    dims = moving_dims(view)
    spans = spans_of(dims)
    if not is_nested(dims, spans):
        return _gather(base, view)
    return _assemble(base, view, cut(base, view, dims, spans, unit_steps=unit_steps))


class _Chain:
    """A list of steps being built: drops steps without effect, and keeps the last of consecutive reshapes."""

    def __init__(self, size: tuple[int, ...]) -> None:
        self.size = size
        self.steps: list[ViewOp] = []
        self._before_reshape: tuple[int, ...] | None = None

    def _push(self, step: ViewOp, size: tuple[int, ...]) -> None:
        self.steps.append(step)
        self.size = size
        self._before_reshape = None

    def reshape(self, size: tuple[int, ...]) -> None:
        before = self.size
        if size == before:
            return
        if self._before_reshape is not None:
            before = self._before_reshape
            self.steps.pop()
        self.size = size
        self._before_reshape = None
        if size != before:
            self.steps.append(Reshape(size))
            self._before_reshape = before

    def transpose(self, permutation: tuple[int, ...]) -> None:
        if permutation != tuple(range(len(permutation))):
            self._push(Transpose(permutation), tuple([self.size[dim] for dim in permutation]))

    def slice(self, axes: list[Axis]) -> None:
        if not any([axis.is_sliced() for axis in axes]):
            return
        start, limit, step = zip(*[axis[1:4] for axis in axes], strict=True)
        sliced = Slice(start, limit, step)
        self._push(sliced, size_after(self.size, sliced))

    def pad(self, axes: list[Axis]) -> None:
        if any([axis.padded for axis in axes]):
            size = tuple([axis.padded or n for axis, n in zip(axes, self.size, strict=True)])
            self._push(Pad(size), size)

    def broadcast(self, size: tuple[int, ...], dims: tuple[int, ...]) -> None:
        if size != self.size:
            self._push(Broadcast(size, dims), size)


def _read_nothing(base: Geometry, view: Geometry) -> tuple[ViewOp, ...]:
    ndim = len(view.size)
    if len(base.size) == ndim and all(n <= of for n, of in zip(view.size, base.size, strict=True)):
        return (Slice((0,) * ndim, view.size, (1,) * ndim),)
    if 0 in base.size:
        return (Reshape(view.size),)
    flat = base.numel
    return (Reshape((flat,)), Slice((0,), (0,), (1,)), Reshape(view.size))


def _read_stretch(base: Geometry, view: Geometry) -> tuple[ViewOp, ...]:
    """Slice a flat base before anything is reshaped: XLA writes one parameter after the other into a bucket in place,
    but copies the bucket wherever it changes between a flat array and one of rows that happen to fit."""
    chain = _Chain(base.size)
    end = view.offset + view.numel
    chain.slice([Axis(base.numel, view.offset, end, 1, 0)])
    order = view.memory_order()
    chain.reshape(tuple([view.size[dim] for dim in order]))
    chain.transpose(tuple(sorted(range(len(order)), key=order.__getitem__)))
    return tuple(chain.steps)


def _gather(base: Geometry, view: Geometry) -> tuple[ViewOp, ...]:
    chain = _Chain(base.size)
    chain.transpose(base.memory_order())
    chain.reshape((base.numel,))
    # Repeated elements (stride 0) are not gathered, but broadcast.
    kept = tuple(dim for dim, (n, stride) in enumerate(zip(view.size, view.stride, strict=True)) if n == 1 or stride)
    gathered = Geometry(tuple(view.size[dim] for dim in kept), tuple(view.stride[dim] for dim in kept), view.offset)
    chain.steps.append(Gather(gathered))
    chain.size = gathered.size
    chain.broadcast(view.size, kept)
    return tuple(chain.steps)


def _assemble(base: Geometry, view: Geometry, groups: list[AxisGroup]) -> tuple[ViewOp, ...]:
    repeats = any([n > 1 for n, stride in zip(view.size, view.stride, strict=True) if not stride])
    chain = _Chain(base.size)
    axes, reshaped = _first_axes(chain, groups)
    while True:
        in_parts = any([axis.parts for axis in axes])
        if reshaped:
            if not in_parts and not repeats:
                axes = _with_dims_of_one(axes, view.size)
            chain.reshape(tuple([axis.size for axis in axes]))
        chain.slice(axes)
        if not in_parts:
            break
        chain.pad(axes)
        axes = [part for axis, n in zip(axes, chain.size, strict=True) for part in _after_slice(axis, n)]
        reshaped = True
    _arrange(chain, [axis.dim for axis in axes], view, repeats)
    return tuple(chain.steps)


def _first_axes(chain: _Chain, groups: list[AxisGroup]) -> tuple[list[Axis], bool]:
    """Return the axes that the array is sliced along next, and whether it must be reshaped for them to exist."""
    if all([len(dims) == 1 == len(axes) for dims, axes in groups]):
        return _axes_of_dims(chain, groups), False
    groups = _slice_first(chain, groups)
    movable = [dim for dim, n in enumerate(chain.size) if n != 1]
    place = {dim: index for index, dim in enumerate(movable)}
    if all([place[dim] == place[dims[0]] + index for dims, _ in groups for index, dim in enumerate(dims)]):
        groups = sorted(groups, key=lambda group: place[group.dims[0]])
    else:
        # The array must be transposed to merge dimensions: then best into the order in which the view shows them.
        groups = sorted(groups, key=_first_dim_shown)
        ones = [dim for dim, n in enumerate(chain.size) if n == 1]
        chain.transpose((*ones, *[dim for dims, _ in groups for dim in dims]))
    return [axis for group in groups for axis in group.axes], True


def _axes_of_dims(chain: _Chain, groups: list[AxisGroup]) -> list[Axis]:
    """Return the axis of each dimension of the base, where each has one."""
    axes = {dims[0]: axis for dims, (axis,) in groups}
    return [axes.get(dim) or Axis(n, 0, n, 1, None) for dim, n in enumerate(chain.size)]


def _slice_first(chain: _Chain, groups: list[AxisGroup]) -> list[AxisGroup]:
    """Slice along dimensions of the base before the rest is reshaped, if that is all there is to slice."""
    plain: list[AxisGroup] = []
    others: list[AxisGroup] = []
    for group in groups:
        is_plain = len(group.dims) == 1 == len(group.axes) and not group.axes[0].parts
        (plain if is_plain else others).append(group)
    if not any([axis.is_sliced() for _, (axis,) in plain]):
        return groups
    if any([axis.parts or axis.is_sliced() for group in others for axis in group.axes]):
        return groups
    chain.slice(_axes_of_dims(chain, plain))
    for dims, (axis,) in plain:
        if axis.dim is not None:
            others.append(AxisGroup(dims, list(_after_slice(axis, chain.size[dims[0]]))))
    return others


def _first_dim_shown(group: AxisGroup) -> int:
    pending = list(group.axes)
    shown = []
    while pending:
        axis = pending.pop()
        pending += axis.parts
        if axis.dim is not None:
            shown.append(axis.dim)
    return min(shown, default=-1)


def _after_slice(axis: Axis, n: int) -> tuple[Axis, ...]:
    if axis.parts:
        return axis.parts
    return () if axis.dim is None else (Axis(n, 0, n, 1, axis.dim),)


def _with_dims_of_one(axes: list[Axis], size: tuple[int, ...]) -> list[Axis]:
    """Let a required reshape also add the view's dimensions of size 1, if no later reshape is required."""
    ones = [dim for dim, n in enumerate(size) if n == 1]
    if not ones or any(axis.dim is None for axis in axes):
        return axes
    result = []
    for axis in axes:
        while ones and axis.dim is not None and ones[0] < axis.dim:
            result.append(Axis(1, 0, 1, 1, ones.pop(0)))
        result.append(axis)
    return result + [Axis(1, 0, 1, 1, dim) for dim in ones]


def _arrange(chain: _Chain, shown: Sequence[int | None], view: Geometry, repeats: bool) -> None:
    """Arrange the dimensions `shown`, in any order and with single elements between, as the view's own."""
    dims = [dim for dim in shown if dim is not None]
    in_order = dims == sorted(dims)
    if in_order and not repeats:
        return chain.reshape(view.size)
    if in_order:
        targets = _targets(shown, len(view.size))
        if targets is None:
            chain.reshape(tuple([n for n, dim in zip(chain.size, shown, strict=True) if dim is not None]))
            targets = dims
        return chain.broadcast(view.size, tuple(targets))
    singles = [index for index, dim in enumerate(shown) if dim is None]
    free = [dim for dim in range(len(view.size)) if dim not in dims]
    if repeats and len(singles) > len(free):
        chain.reshape(tuple([n for n, dim in zip(chain.size, shown, strict=True) if dim is not None]))
        shown, singles = dims, []
    # A single element takes the place of a dimension of size 1 or of a repeated one; what is left over goes last.
    where = {dim: index for index, dim in enumerate(shown) if dim is not None} | dict(zip(free, singles, strict=False))
    kept = sorted(where)
    chain.transpose((*(where[dim] for dim in kept), *singles[len(free) :]))
    return chain.broadcast(view.size, tuple(kept)) if repeats else chain.reshape(view.size)


def _targets(shown: Sequence[int | None], ndim: int) -> list[int] | None:
    """Return an ascending dimension of the view for each of `shown`, single elements at dimensions that nothing else
    shows.
    """
    targets: list[int] = []
    bound = ndim
    for dim in reversed(shown):
        if dim is None:
            dim = bound - 1
        elif dim >= bound:
            return None
        if dim < 0:
            return None
        targets.append(dim)
        bound = dim
    targets.reverse()
    return targets
