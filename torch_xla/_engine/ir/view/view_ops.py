"""The steps of a read: each maps one array to another, with all numbers known."""

from dataclasses import dataclass

from .geometry import Geometry


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same elements in row-major order, in another size."""

    size: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transpose:
    """Dimension `d` of the result is dimension `permutation[d]` of the operand."""

    permutation: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """`operand[start:limit:step]` in every dimension."""

    start: tuple[int, ...]
    limit: tuple[int, ...]
    step: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pad:
    """Grows each dimension at its end up to `size`, with elements that no later step shows."""

    size: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Dimension `d` of the operand becomes dimension `dims[d]` of the result, repeated if it is 1; `dims` ascend."""

    size: tuple[int, ...]
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """Element by element from a flat operand, as `view` says: what no other step can do."""

    view: Geometry


ViewOp = Reshape | Transpose | Slice | Pad | Broadcast | Gather


def size_after(size: tuple[int, ...], step: ViewOp) -> tuple[int, ...]:
    """Return the size of the result of `step` on an operand of `size`."""
    match step:
        case Transpose(permutation):
            return tuple(size[dim] for dim in permutation)
        case Slice(start, limit, stride):
            return tuple([-((a - b) // c) for a, b, c in zip(start, limit, stride, strict=True)])
        case Gather(view):
            return view.size
        case Reshape(after) | Pad(after) | Broadcast(after, _):
            return after
