"""What is known of a value before it is computed: its size, its order in memory and its dtype."""

import math
from typing import Any


class Spec:
    """Size, stride and dtype of a dense value. Interned: two equal specs are one object, so `is` compares them.

    The strides say in which order the elements lie in the storage (contiguous, channels last, transposed). The array
    that carries the value always has the logical shape `size`.
    """

    __slots__ = ("dtype", "is_complex", "is_contiguous", "numel", "size", "stride")

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    numel: int
    is_contiguous: bool
    is_complex: bool

    def __init__(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: Any) -> None:
        self.size = size
        self.stride = stride
        self.dtype = dtype
        self.numel = math.prod(size)
        self.is_complex = bool(dtype is not None and dtype.is_complex)
        # As PyTorch's hook makes a new tensor; to an empty one it gives other strides than PyTorch elsewhere does.
        self.is_contiguous = stride == contiguous_stride(size) and 0 not in size

    def __repr__(self) -> str:
        return f"Spec({self.size}, {self.stride}, {self.dtype})"


_specs: dict[tuple[tuple[int, ...], tuple[int, ...], Any], Spec] = {}


def spec_of(size: tuple[int, ...], stride: tuple[int, ...], dtype: Any) -> Spec:
    """The one `Spec` of these three."""
    key = (size, stride, dtype)
    spec = _specs.get(key)
    if spec is None:
        spec = _specs.setdefault(key, Spec(tuple(size), tuple(stride), dtype))
    return spec


def contiguous_stride(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides PyTorch gives a new contiguous tensor (a dimension of size 0 counts as 1)."""
    stride: list[int] = []
    step = 1
    for n in reversed(size):
        stride.append(step)
        step *= max(n, 1)
    return tuple(reversed(stride))
