"""Shapes and element types of the operands and results of a builder's operations."""

from collections.abc import Sequence
from typing import Any

import jax
import torch

from .._engine import dtypes, interop


class Type:
    """XLA's names of element types."""

    F32 = "f32"
    F64 = "f64"
    BF16 = "bf16"
    F16 = "f16"
    U8 = "u8"
    S8 = "s8"
    U16 = "u16"
    S16 = "s16"
    U32 = "u32"
    S32 = "s32"
    U64 = "u64"
    S64 = "s64"
    C64 = "c64"
    C128 = "c128"
    PRED = "pred"


Described = interop.BuilderDescribed


class Shape:
    """Element type and sizes of an array, or the shapes of a tuple's elements.

    >>> from torch_xla.core.xla_builder import Shape, Type
    >>> Shape.create(Type.F32, (2, 3))
    f32[2,3]
    """

    def __init__(self, shape: object) -> None:
        if isinstance(shape, Shape):
            shape = shape.shape
        self._described: Any = tuple(Shape(each).shape for each in shape) if isinstance(shape, tuple | list) else shape

    @classmethod
    def create(cls, dtype: str, sizes: Sequence[int], dynamic_dimensions: Sequence[bool] | None = None) -> "Shape":
        """Return an array's shape. Raises `NotImplementedError` for a dynamic dimension: sizes are numbers."""
        if dynamic_dimensions is not None and any(dynamic_dimensions):
            raise NotImplementedError(
                "programs here have fixed sizes. Pad what varies to a few sizes, or export the model with "
                "torch.export.Dim and torch_xla.stablehlo"
            )
        return cls(interop.builder_array(dtype, sizes))

    @property
    def shape(self) -> Described:
        """Return JAX's description of the shape: a `jax.ShapeDtypeStruct`, or a tuple of them."""
        return self._described

    def is_tuple(self) -> bool:
        """Return whether this is the shape of a tuple."""
        return isinstance(self._described, tuple)

    def tuple_size(self) -> int:
        """Return the number of elements of the tuple."""
        return len(self._tuple())

    def tuple_shape(self, index: int) -> "Shape":
        """Return the shape of an element of the tuple."""
        return Shape(self._tuple()[index])

    def is_dynamic(self) -> bool:
        """Return False: sizes are numbers."""
        return False

    def as_scalar(self) -> "Shape":
        """Return the shape of a scalar of the same element type."""
        return Shape(jax.ShapeDtypeStruct((), interop.builder_array_of(self._described).dtype))

    @property
    def rank(self) -> int:
        """Return the number of dimensions of the array."""
        return len(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the array."""
        return tuple(interop.builder_array_of(self._described).shape)

    @property
    def dynamic_dimensions(self) -> tuple[bool, ...]:
        """Return for each dimension whether its size may vary: always False."""
        return (False,) * self.rank

    @property
    def dtype(self) -> str:
        """Return XLA's name of the element type."""
        return interop.dtype_name(interop.builder_array_of(self._described).dtype)

    def _tuple(self) -> tuple[Described, ...]:
        if not isinstance(self._described, tuple):
            raise TypeError(f"expected the Shape of a tuple, not {self!r}")
        return self._described

    def __repr__(self) -> str:
        return interop.text_of_shape(self._described)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self._described == other._described

    def __hash__(self) -> int:
        return hash(repr(self))


def mkshape(dtype: str, sizes: Sequence[int], dynamic_dimensions: Sequence[bool] | None = None) -> Shape:
    """Return the shape of an array: see `Shape.create`."""
    return Shape.create(dtype, sizes, dynamic_dimensions)


def tensor_shape(tensor: object, device: str = "") -> Any:
    """Return the shape of a tensor with its element type on the device; for a list of tensors, a list of shapes.

    >>> import torch
    >>> from torch_xla.core.xla_builder import tensor_shape
    >>> tensor_shape([torch.ones(2, 3, device="xla"), torch.ones(1, dtype=torch.int64, device="xla")])
    [f32[2,3], s64[1]]
    """
    if isinstance(tensor, list | tuple):
        return [tensor_shape(each, device) for each in tensor]
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor_shape() takes tensors; got a {type(tensor).__name__}")
    return Shape(jax.ShapeDtypeStruct(tuple(tensor.shape), dtypes.to_jax(dtypes.on_device(tensor.dtype))))
