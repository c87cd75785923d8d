"""The spec of a value before it is computed: its size, memory order and dtype."""

import math
from typing import Any

from ..caching.interning import drop_unheld, look_through, note_new
from ..errors import OutOfMemory
from .sharding import Sharding


class Spec:
    """Size, stride and dtype of a dense value. Interned: two equal specs are one object, so `is` compares them.

    The strides give the order of the elements in the storage (contiguous, channels last, transposed). The array that
    holds the value always has the logical shape `size`.
    """

    __slots__ = ("dtype", "is_complex", "is_contiguous", "numel", "plain", "sharding", "size", "stride")

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    numel: int
    is_contiguous: bool
    is_complex: bool
    sharding: Sharding | None  # of a value that enters a graph, if its devices hold different parts of it
    plain: "Spec"  # the same without the sharding

    def __init__(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: Any, sharding: Sharding | None = None
    ) -> None:
        self.size = size
        self.stride = stride
        self.dtype = dtype
        self.numel = math.prod(size)
        self.is_complex = bool(dtype is not None and dtype.is_complex)
        # As PyTorch's hook makes a new tensor; to an empty one it gives other strides than PyTorch elsewhere does.
        self.is_contiguous = stride == contiguous_stride(size) and 0 not in size
        self.sharding = sharding
        self.plain = self if sharding is None else spec_of(size, stride, dtype)

    def __repr__(self) -> str:
        placed = f", {self.sharding}" if self.sharding is not None else ""
        return f"Spec({self.size}, {self.stride}, {self.dtype}{placed})"


# More bytes than any machine has: 32 TiB.
MOST_BYTES = 1 << 45


def refuse_impossible(spec: Spec) -> None:
    """Raise an error for a value that no device could hold, before computing it takes years."""
    size = spec.numel * spec.dtype.itemsize
    if size > MOST_BYTES:
        raise OutOfMemory(
            f"can't allocate memory: a tensor of {list(spec.size)} {str(spec.dtype).removeprefix('torch.')} takes "
            f"{size} bytes ({size >> 40} TiB), and no device has that much memory."
        )


_specs: dict[tuple[tuple[int, ...], tuple[int, ...], Any], Spec] = {}


def spec_of(size: tuple[int, ...], stride: tuple[int, ...], dtype: object) -> Spec:
    """Return the one `Spec` of these three."""
    key = (size, stride, dtype)
    spec = _specs.get(key)
    if spec is None:
        spec = _specs.setdefault(key, Spec(tuple(size), tuple(stride), dtype))
        note_new()
    return spec


_sharded: dict[tuple[Spec, Sharding], Spec] = {}


def sharded(spec: Spec, sharding: Sharding | None) -> Spec:
    """Return the one `Spec` of a value like `spec` that is divided so."""
    if sharding is None:
        return spec.plain
    key = spec.plain, sharding
    found = _sharded.get(key)
    if found is None:
        found = _sharded.setdefault(key, Spec(spec.size, spec.stride, spec.dtype, sharding))
    return found


# A sharded spec holds its unsharded spec, and an unsharded spec holds itself.
look_through(lambda: drop_unheld(_sharded), 1)
look_through(lambda: drop_unheld(_specs, own=1), 2)


def contiguous_stride(size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides PyTorch gives a new contiguous tensor (a dimension of size 0 counts as 1)."""
    stride: list[int] = []
    step = 1
    for n in reversed(size):
        stride.append(step)
        step *= max(n, 1)
    return tuple(reversed(stride))
