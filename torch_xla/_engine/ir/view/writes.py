"""Turn a write through a view into a new value of the storage: the reading steps, inverted."""

from collections.abc import Sequence
from dataclasses import dataclass

from .geometry import Geometry
from .overlap import InternalOverlap, has_internal_overlap
from .reads import steps_between
from .view_ops import Broadcast, Gather, Pad, Reshape, Slice, Transpose, ViewOp, size_after


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The view shows nothing: the base keeps its value."""


@dataclass(frozen=True, slots=True)
class Replace:
    """The view shows every element once: the new base is `steps` of the value; the old one is not needed."""

    steps: tuple[ViewOp, ...]


@dataclass(frozen=True, slots=True)
class Update:
    """The new base is `backward` of: `forward` of the old one, its region `start:limit:step` replaced by `value`.

    `value` says what the written value becomes before: an array of the region's size. If it needs a base itself, that
    is the region's old content.
    """

    forward: tuple[ViewOp, ...]
    start: tuple[int, ...]
    limit: tuple[int, ...]
    step: tuple[int, ...]
    value: "Write"
    backward: tuple[ViewOp, ...]


@dataclass(frozen=True, slots=True)
class Scatter:
    """The new base is `backward` of: `forward` of the old one, a flat array, each element that `view` shows replaced.

    Only for views that may show an element twice; which of its values such an element gets is left open.
    """

    forward: tuple[ViewOp, ...]
    view: Geometry
    backward: tuple[ViewOp, ...]


Write = Unchanged | Replace | Update | Scatter


def write(base: Geometry, view: Geometry) -> Write:
    """Return how an array of `view.size`, written through `view`, changes an array of `base.size`.

    `base` is dense with offset 0. A view that repeats elements by a stride of 0 cannot be written to.
    """
    if has_internal_overlap(view) is InternalOverlap.YES:
        raise ValueError(f"{view} shows elements more than once: it cannot be written to")
    if 0 in view.size:
        return Unchanged()
    return _undo(base.size, steps_between(base, view, unit_steps=True))


def _undo(size: tuple[int, ...], steps: tuple[ViewOp, ...]) -> Write:
    sizes = [size]
    for index, step in enumerate(steps):
        if isinstance(step, Slice):
            value = _undo(size_after(sizes[-1], step), steps[index + 1 :])
            forward, backward = steps[:index], _inverse(sizes, steps[:index])
            return Update(forward, step.start, step.limit, step.step, value, backward)
        if isinstance(step, Gather):
            return Scatter(steps[:index], step.view, _inverse(sizes, steps[:index]))
        sizes.append(size_after(sizes[-1], step))
    return Replace(_inverse(sizes, steps))


def _inverse(sizes: Sequence[tuple[int, ...]], steps: tuple[ViewOp, ...]) -> tuple[ViewOp, ...]:
    """Return the steps back, for steps that lose nothing; `sizes` are those before each step."""
    return tuple([_inverse_of(sizes[index], steps[index]) for index in reversed(range(len(steps)))])


def _inverse_of(size: tuple[int, ...], step: ViewOp) -> ViewOp:
    match step:
        case Transpose(permutation):
            return Transpose(tuple(sorted(range(len(permutation)), key=permutation.__getitem__)))
        case Pad():
            return Slice((0,) * len(size), size, (1,) * len(size))
        case Reshape():
            return Reshape(size)
        case Slice() | Broadcast() | Gather():
            raise TypeError(f"{step} has no inverse")
