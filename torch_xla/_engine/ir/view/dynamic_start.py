"""Views that differ only in where they begin: one chain of steps with another start of one slice.

So one program serves all of them: `x[i]` for every `i`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .geometry import Geometry
from .reads import steps_between
from .view_ops import Gather, Reshape, Slice, Transpose, ViewOp


def at_start(view: Geometry) -> Geometry:
    """Return the view of the same size and strides that begins where the storage does."""
    return replace(view, offset=0)


def is_moved(base: Geometry, view: Geometry, *, unit_steps: bool) -> bool:
    """Return whether `view` is `at_start(view)` moved by the starts that `starts_at` finds.

    They move if one slice, or a gather, is all that depends on the offset.
    """
    if 0 in view.size:
        return False
    steps = steps_between(base, view, unit_steps=unit_steps)
    first = steps_between(base, at_start(view), unit_steps=unit_steps)
    cuts = [step for step in steps if isinstance(step, (Slice, Gather))]
    if len(cuts) != 1 or tuple(map(_unmoved, steps)) != first:
        return False
    return isinstance(cuts[0], Gather) or starts_at(base, first, view.offset) == cuts[0].start


def _unmoved(step: ViewOp) -> ViewOp:
    match step:
        case Slice(start, limit, stride):
            return Slice((0,) * len(start), tuple(b - a for a, b in zip(start, limit, strict=True)), stride)
        case Gather(view):
            return Gather(at_start(view))
        case _:
            return step


def starts_at(
    base: Geometry,
    steps: Sequence[ViewOp],
    offset: object,
    divided: Callable[[Any, int], tuple[Any, Any]] = divmod,
) -> tuple[Any, ...] | None:
    """Return the starts of the first slice among `steps`, if they are to read a view that begins at `offset`.

    `divided` gives quotient and remainder of an offset that is no Python number. `None` where the array that is sliced
    does not step through memory evenly.
    """
    index, cut = next((index, step) for index, step in enumerate(steps) if isinstance(step, Slice))
    size, units = _followed(base, steps[:index])
    if units is None:
        return None
    starts: list[Any] = [0] * len(units)
    moving = [dim for dim, n in enumerate(size) if cut.limit[dim] - cut.start[dim] != n]
    for dim in sorted(moving, key=lambda dim: -units[dim]):
        starts[dim], offset = (offset, 0) if units[dim] == 1 else divided(offset, units[dim])
    return tuple(starts)


def _followed(base: Geometry, steps: Sequence[ViewOp]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    size, units = base.size, base.stride
    known: tuple[int, ...] | None = units
    for step in steps:
        match step:
            case Transpose(permutation):
                known = None if known is None else tuple(known[dim] for dim in permutation)
                size = tuple(size[dim] for dim in permutation)
            case Reshape(after):
                known = None if known is None else _reshaped(size, known, after)
                size = after
            case _:
                return size, None
    return size, known


def _reshaped(size: Sequence[int], units: Sequence[int], after: Sequence[int]) -> tuple[int, ...] | None:
    """Return the units of the dimensions `after` a reshape; `None` if one spans dimensions apart in memory."""
    # Neighbours in memory as one: how many elements they have together, and the unit of the innermost.
    blocks: list[tuple[int, int]] = []
    for n, unit in zip(size, units, strict=True):
        if n == 1:
            continue
        if blocks and blocks[-1][1] == n * unit:
            blocks[-1] = (blocks[-1][0] * n, unit)
        else:
            blocks.append((n, unit))
    found: list[int] = []
    left, unit = 1, 1
    for n in reversed(after):
        if n == 1:
            found.append(unit)
            continue
        if left == 1:
            if not blocks:
                return None
            left, unit = blocks.pop()
        if left % n:
            return None
        found.append(unit)
        left, unit = left // n, unit * n
    return tuple(reversed(found))
