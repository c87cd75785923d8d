"""Geometry: the size, stride and offset of a tensor on its storage, in elements."""

from dataclasses import dataclass
from functools import reduce
from operator import mul


@dataclass(frozen=True, slots=True)
class Geometry:
    """The element at index (i, j, …) is element `offset + i * stride[0] + j * stride[1] + …` of the storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @classmethod
    def contiguous(cls, size: tuple[int, ...]) -> "Geometry":
        """Return the row-major geometry from the start of the storage, with PyTorch's strides (an empty dimension
        counts as 1).
        """
        stride: list[int] = []
        below = 1
        for n in reversed(size):
            stride.append(below)
            below *= n or 1
        return cls(size, tuple(reversed(stride)))

    @property
    def numel(self) -> int:
        """Return the number of elements; an element that occurs twice counts twice."""
        return reduce(mul, self.size, 1)

    @property
    def extent(self) -> int:
        """One more than the largest index into the storage; 0 if no element is shown."""
        if 0 in self.size:
            return 0
        return self.offset + 1 + sum((n - 1) * stride for n, stride in zip(self.size, self.stride, strict=True))

    def is_contiguous(self) -> bool:
        """Return whether it is row-major without gaps; strides of dimensions of size 1 and of empty views do not
        count.
        """
        expected = 1
        for n, stride in zip(reversed(self.size), reversed(self.stride), strict=True):
            if n != 1 and stride != expected:
                return 0 in self.size
            expected *= n
        return True

    def is_dense(self) -> bool:
        """Return whether the elements, in some order of the dimensions, fill a stretch of memory once each."""
        if 0 in self.size:
            return True
        expected = 1
        for stride, n in sorted((s, n) for n, s in zip(self.size, self.stride, strict=True) if n != 1):
            if stride != expected:
                return False
            expected *= n
        return True

    def memory_order(self) -> tuple[int, ...]:
        """Return the dimensions from the outermost in memory to the innermost; dimensions of size 1 stay where they
        are.
        """
        movable = [dim for dim, n in enumerate(self.size) if n != 1]
        in_memory = iter(sorted(movable, key=lambda dim: -self.stride[dim]))
        return tuple(dim if n == 1 else next(in_memory) for dim, n in enumerate(self.size))

    def same_elements(self, other: "Geometry") -> bool:
        """Return whether both have the same elements at the same indices, ignoring strides that are never used."""
        if self.size != other.size:
            return False
        if self.stride == other.stride and self.offset == other.offset or 0 in self.size:
            return True
        return self.offset == other.offset and all(
            n == 1 or ours == theirs for n, ours, theirs in zip(self.size, self.stride, other.stride, strict=True)
        )
