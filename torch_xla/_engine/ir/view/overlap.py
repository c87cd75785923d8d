"""Whether two elements of a view, or of two views, may be one element of the storage, as PyTorch answers it."""

from enum import Enum, auto

from .geometry import Geometry


class InternalOverlap(Enum):
    """Whether one view shows an element of its storage twice."""

    NO = auto()
    YES = auto()
    TOO_HARD = auto()  # not decided: PyTorch lets such a view be written to


class Overlap(Enum):
    """How the elements of two views of one storage relate."""

    FULL = auto()  # the same elements at the same indices
    PARTIAL = auto()  # some elements in common, or all of them at other indices
    NO = auto()
    TOO_HARD = auto()  # not decided: one of the views has gaps


def has_internal_overlap(geometry: Geometry) -> InternalOverlap:
    """Decide whether an in-place write raises: only a stride of 0 surely overlaps, only a dense view surely not."""
    if geometry.is_dense():
        return InternalOverlap.NO
    if any(n > 1 and stride == 0 for n, stride in zip(geometry.size, geometry.stride, strict=True)):
        return InternalOverlap.YES
    return InternalOverlap.TOO_HARD


def overlap_between(a: Geometry, b: Geometry) -> Overlap:
    """Decide whether an op may write `a` while reading `b`, for two tensors (not one tensor twice)."""
    if 0 in a.size or 0 in b.size:
        return Overlap.NO
    if not (a.is_dense() and b.is_dense()):
        return Overlap.TOO_HARD
    a_end, b_end = a.offset + a.numel, b.offset + b.numel
    if a.offset == b.offset and a_end == b_end:
        return Overlap.FULL if a.stride == b.stride else Overlap.PARTIAL
    return Overlap.PARTIAL if a.offset < b_end and b.offset < a_end else Overlap.NO
