"""Operations of XLA's builder, as objects that Python's operators combine."""

from collections.abc import Callable, Sequence
from typing import NoReturn

import jax
import numpy as np
import torch

from .._engine import dtypes, interop
from .builder_shape import Shape
from .builder_windows import Windowed


def mkop(name: str, ops: Sequence["Op | interop.BuilderNode"], **kwargs: object) -> "Op":
    """Return the operation that XLA calls `name`, with these operands (`Op`s or their handles).

    Raises `ValueError` with the known names for an unknown name, and XLA's error for operands that do not fit.
    """
    nodes = [each.op if isinstance(each, Op) else each for each in ops]
    return Op(interop.builder_operation(name, nodes[0].builder, nodes, kwargs))


def mkleaf(name: str, builder: interop.XlaBuilder, **kwargs: object) -> "Op":
    """Return the operation `name`, which has no operands: "Constant" (value=), "Iota" (shape=, iota_dimension=)."""
    return Op(interop.builder_operation(name, builder, (), kwargs))


def mkparam(builder: interop.XlaBuilder, param_no: int, shape: Shape) -> "Op":
    """Return parameter number `param_no` of the computation."""
    return Op(interop.builder_parameter(builder, param_no, shape.shape))


def create_computation(
    name: str, fn: Callable[..., object], shapes: Sequence[object], **kwargs: object
) -> interop.BuilderComputation:
    """Build the computation `fn(*parameters, **kwargs)`, with a parameter for each of `shapes`.

    `fn` takes `Op`s and returns an `Op` or a tuple of them. A shape may be that of a tuple, also as a list of shapes.

    >>> import torch, torch_xla.core.xla_builder as xb
    >>> scalar = xb.Shape.create(xb.Type.F32, ())
    >>> plus = xb.create_computation("plus", lambda x, y: x + y, (scalar, scalar))
    >>> three = xb.mkshape("f32", (3,))
    >>> total = xb.create_computation("total", lambda x, zero: x.reduce_all(zero, plus), (three, scalar))
    >>> xb.xla_computation_as_func(total)(torch.ones(3, device="xla"), torch.zeros((), device="xla")).item()
    3.0
    """
    builder = interop.XlaBuilder(name)
    parameters = [mkparam(builder, number, Shape(shape)) for number, shape in enumerate(shapes)]
    result = fn(*parameters, **kwargs)
    if isinstance(result, tuple | list):
        result = Op.tuple(result, builder)
    if not isinstance(result, Op):
        raise TypeError(
            f"create_computation({name!r}): fn must return an Op or a tuple of them, not a {type(result).__name__}"
        )
    return result.build(name)


def _of_one(name: str) -> Callable[["Op"], "Op"]:
    def method(self: "Op") -> "Op":
        return mkop(name, (self,))

    method.__doc__ = f"XLA's {name}, element by element."
    return method


def _of_two(name: str) -> Callable[["Op", object], "Op"]:
    def method(self: "Op", other: object) -> "Op":
        return mkop(name, (self, other if isinstance(other, Op) else self.scalar_of(other)))

    method.__doc__ = f"XLA's {name}, element by element; a number stands for a scalar of this element type."
    return method


def _reversed(name: str) -> Callable[["Op", object], "Op"]:
    def method(self: "Op", other: object) -> "Op":
        return mkop(name, (self.scalar_of(other), self))

    return method


class Op(Windowed):
    """One operation of a computation that is being built. Its handle is `op`.

    Both operands of an operation have the same element type (see `cast`). A scalar fits every shape.

    >>> import torch, torch_xla.core.xla_builder as xb
    >>> @xb.XlaCallable
    ... def softplus(x):
    ...     return (x.exp() + 1.0).log()
    >>> softplus(torch.zeros(1, device="xla"))
    tensor([0.6931], device='xla:0')
    """

    def shape(self) -> Shape:
        """Return the shape of the operation's result."""
        return Shape(self.op.described)

    def builder(self) -> interop.XlaBuilder:
        """Return the builder of the computation that holds this operation."""
        return self.op.builder

    def build(self, name: str) -> interop.BuilderComputation:
        """Build the computation whose result is this operation. Raises `ValueError` if a parameter is missing."""
        return self.op.computation(name)

    def scalar_of(self, value: object) -> "Op":
        """Return a number as a scalar of this operation's element type."""
        return Op.scalar(self.builder(), value, self.shape().dtype)

    def __repr__(self) -> str:
        return f"{self.op.name}: {self.shape()!r}"

    def reshape(
        self, sizes: Sequence[int], dimensions: Sequence[int] | None = None, inferred_dimension: int | None = None
    ) -> "Op":
        """Return the elements in another shape, read in the order `dimensions`; one size may be -1."""
        del inferred_dimension  # which of them is -1
        return mkop("Reshape", (self,), sizes=interop.inferred_sizes(self.shape().sizes, sizes), dimensions=dimensions)

    def dynamic_reshape(self, sizes: object) -> NoReturn:
        """Raise `NotImplementedError`: sizes in programs are numbers."""
        _refuse_dynamic("dynamic_reshape")

    def set_dimension_size(self, size: object, dimension: int) -> NoReturn:
        """Raise `NotImplementedError`: sizes in programs are numbers."""
        _refuse_dynamic("set_dimension_size")

    def get_dimension_size(self, dimension: int) -> "Op":
        """Return the size of a dimension as an s32 scalar."""
        return mkop("GetDimensionSize", (self,), dimension=dimension)

    def broadcast(self, sizes: Sequence[int]) -> "Op":
        """Repeat the array along new leading dimensions of these sizes."""
        return mkop("Broadcast", (self,), sizes=sizes)

    def broadcast_in_dim(self, sizes: Sequence[int], dimensions: Sequence[int]) -> "Op":
        """Repeat the array to `sizes`; dimension n becomes dimension `dimensions[n]`."""
        return mkop("BroadcastInDim", (self,), sizes=sizes, dimensions=dimensions)

    def slice(
        self, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
    ) -> "Op":
        """Return the part between two positions, with strides."""
        return mkop("Slice", (self,), start_indices=start_indices, limit_indices=limit_indices, strides=strides)

    def slice_in_dim(self, start_index: int, limit_index: int, dimno: int, stride: int = 1) -> "Op":
        """Return the part between two positions along one dimension."""
        return mkop("SliceInDim", (self,), start_index=start_index, limit_index=limit_index, dimno=dimno, stride=stride)

    def dynamic_slice(self, start_indices: Sequence["Op"], slice_sizes: Sequence[int]) -> "Op":
        """Return a part of fixed size that begins at the indices in scalars, one for each dimension."""
        return mkop("DynamicSlice", (self, *start_indices), slice_sizes=slice_sizes)

    def dynamic_update_slice(self, update: "Op", start_indices: Sequence["Op"]) -> "Op":
        """Return the array with `update` written over the part that begins at the indices in scalars."""
        return mkop("DynamicUpdateSlice", (self, update, *start_indices))

    def gather(
        self,
        start_indices: "Op",
        offset_dims: Sequence[int],
        collapsed_slice_dims: Sequence[int],
        start_index_map: Sequence[int],
        index_vector_dim: int,
        indices_are_sorted: bool | None = None,
        slice_sizes: Sequence[int] | None = None,
    ) -> "Op":
        """Record XLA's Gather. By default, slices have size 1 in collapsed dimensions and full size in the others."""
        return mkop(
            "Gather", (self, start_indices), offset_dims=offset_dims, collapsed_slice_dims=collapsed_slice_dims,
            start_index_map=start_index_map, index_vector_dim=index_vector_dim, indices_are_sorted=indices_are_sorted,
            slice_sizes=slice_sizes,
        )  # fmt: skip

    def scatter(
        self,
        scatter_indices: "Op",
        updates: "Op",
        computation: object,
        update_window_dims: Sequence[int],
        inserted_window_dims: Sequence[int],
        scatter_dims_to_operand_dims: Sequence[int],
        index_vector_dim: int,
        indices_are_sorted: bool | None = None,
        unique_indices: bool | None = None,
    ) -> "Op":
        """Record XLA's Scatter, with any computation of old and new value."""
        return mkop(
            "Scatter", (self, scatter_indices, updates), computation=computation,
            update_window_dims=update_window_dims, inserted_window_dims=inserted_window_dims,
            scatter_dims_to_operand_dims=scatter_dims_to_operand_dims, index_vector_dim=index_vector_dim,
            indices_are_sorted=indices_are_sorted, unique_indices=unique_indices,
        )  # fmt: skip

    def dot(self, other: "Op", precision_config: object = None) -> "Op":
        """Return the product of two matrices or vectors."""
        return mkop("Dot", (self, other), precision_config=precision_config)

    def cast(self, to_type: str) -> "Op":
        """Convert the elements to another element type."""
        return mkop("ConvertElementType", (self,), to_type=interop.builder_dtype(to_type))

    def bitcast(self, to_type: str) -> "Op":
        """Return the same bits as another element type."""
        return mkop("BitcastConvertType", (self,), to_type=interop.builder_dtype(to_type))

    def pad(self, value: "Op", config: Sequence[Sequence[int]]) -> "Op":
        """Pad with a scalar: `config` has, for each dimension, the padding before, after and between elements."""
        return mkop("Pad", (self, value), config=config)

    def reduce(self, init_value: "Op", computation: object, dimensions: Sequence[int]) -> "Op":
        """Reduce along some dimensions."""
        return mkop("Reduce", (self, init_value), computation=computation, dimensions=dimensions)

    def reduce_all(self, init_value: "Op", computation: object) -> "Op":
        """Reduce along all dimensions."""
        return mkop("ReduceAll", (self, init_value), computation=computation)

    def select(self, true_value: "Op", false_value: "Op") -> "Op":
        """Return elements of `true_value` where this predicate is true, else of `false_value`."""
        return mkop("Select", (self, true_value, false_value))

    def transpose(self, permutation: Sequence[int]) -> "Op":
        """Return the array with its dimensions in the order `permutation`."""
        return mkop("Transpose", (self,), permutation=permutation)

    def rev(self, dimensions: Sequence[int]) -> "Op":
        """Reverse the array along some dimensions."""
        return mkop("Rev", (self,), dimensions=dimensions)

    def triangualr_solve(
        self,
        b: "Op",
        left_side: bool | None = None,
        lower: bool | None = None,
        unit_diagonal: bool | None = None,
        transpose_a: bool | None = None,
    ) -> "Op":
        """Return the `x` with `self x = b`, or with `x self = b`; `self` is a triangular matrix."""
        return mkop(
            "TriangularSolve", (self, b), left_side=left_side, lower=lower, unit_diagonal=unit_diagonal,
            transpose_a=transpose_a,
        )  # fmt: skip

    triangular_solve = triangualr_solve

    def clamp(self, min_value: "Op", max_value: "Op") -> "Op":
        """Limit each element to the range from `min_value` to `max_value`."""
        return mkop("Clamp", (self, min_value, max_value))

    def get_tuple_element(self, index: int) -> "Op":
        """Return an element of a tuple."""
        return mkop("GetTupleElement", (self,), index=index)

    def conditional(
        self, true_operand: "Op", false_operand: "Op", true_computation: object, false_computation: object
    ) -> "Op":
        """Run one of two computations with its operand; this predicate chooses."""
        return mkop(
            "Conditional", (self, true_operand, false_operand), true_computation=true_computation,
            false_computation=false_computation,
        )  # fmt: skip

    def mkconditional(
        self, ops: Sequence["Op"], true_fn: Callable[..., object], false_fn: Callable[..., object], **kwargs: object
    ) -> "Op":
        """Run one of two functions of `ops`; this predicate chooses."""
        operand = Op.tuple(ops, self.builder())
        chosen = [
            Op.make_computation(name, Op.wrap_function(fn), (operand,), **kwargs)
            for name, fn in (("true", true_fn), ("false", false_fn))
        ]
        return self.conditional(operand, operand, *chosen)

    def while_loop(self, condition_computation: object, body_computation: object) -> "Op":
        """Apply `body_computation` repeatedly, beginning with this operation, while `condition_computation` holds."""
        return mkop("While", (self,), condition_computation=condition_computation, body_computation=body_computation)

    @classmethod
    def mkwhile(
        cls, ops: Sequence["Op"], condition_fn: Callable[..., object], body_fn: Callable[..., object], **kwargs: object
    ) -> "Op":
        """Apply `body_fn(*ops)` repeatedly while `condition_fn(*ops)` holds, and return the results as a tuple."""
        start = cls.tuple(ops)
        condition, body = (
            cls.make_computation(name, cls.wrap_function(fn), (start,), **kwargs)
            for name, fn in (("condition", condition_fn), ("body", body_fn))
        )
        return start.while_loop(condition, body)

    @classmethod
    def wrap_function(cls, fn: Callable[..., object]) -> Callable[..., object]:
        """Return `fn` as a function of one tuple; if `fn` returns several results, they become a tuple."""

        def of_tuple(operand: "Op", **kwargs: object) -> object:
            elements = [operand.get_tuple_element(place) for place in range(operand.shape().tuple_size())]
            return fn(*elements, **kwargs)

        return of_tuple

    @classmethod
    def make_computation(
        cls, name: str, computation: object, args_or_shapes: Sequence[object], **kwargs: object
    ) -> object:
        """Return `computation`, or the computation of a function of `Op`s for operands or shapes such as these."""
        if not callable(computation) or isinstance(computation, interop.BuilderComputation):
            return computation
        shapes = [each.shape() if isinstance(each, Op) else each for each in args_or_shapes]
        return create_computation(name, computation, shapes, **kwargs)

    @classmethod
    def tuple(cls, ops: Sequence["Op"], builder: interop.XlaBuilder | None = None) -> "Op":
        """Return the operations as one tuple."""
        return Op(interop.builder_operation("Tuple", builder or ops[0].builder(), [each.op for each in ops], {}))

    @classmethod
    def concat_in_dim(cls, ops: Sequence["Op"], dimension: int, builder: object = None) -> "Op":
        """Concatenate the operations along a dimension."""
        del builder
        return mkop("ConcatInDim", ops, dimension=dimension)

    @classmethod
    def call(
        cls, computation: interop.BuilderComputation, ops: Sequence["Op"], builder: interop.XlaBuilder | None = None
    ) -> "Op":
        """Call a computation with these operands."""
        nodes = [each.op for each in ops]
        return Op(interop.builder_operation("Call", builder or nodes[0].builder, nodes, {"computation": computation}))

    @classmethod
    def constant(cls, builder: interop.XlaBuilder, value: object) -> "Op":
        """Return a tensor (of the CPU), array or number as a constant with its dtype."""
        array = value.detach().cpu() if isinstance(value, torch.Tensor) else torch.as_tensor(value)
        host = np.asarray(jax.numpy.from_dlpack(array)) if array.dtype is torch.bfloat16 else array.numpy()
        return mkleaf("Constant", builder, value=host)

    @classmethod
    def scalar(cls, builder: interop.XlaBuilder, value: object, dtype: str | None = None) -> "Op":
        """Return a number as a constant; by default its element type is PyTorch's for such a number."""
        kind = interop.builder_dtype(dtype) if dtype else torch.as_tensor(value).numpy().dtype
        return mkleaf("Constant", builder, value=np.asarray(value, kind))

    @classmethod
    def zero(cls, builder: interop.XlaBuilder, dtype: str | None = None) -> "Op":
        """Return the scalar 0, by default as f32."""
        return cls.scalar(builder, 0, dtype or "f32")

    @classmethod
    def one(cls, builder: interop.XlaBuilder, dtype: str | None = None) -> "Op":
        """Return the scalar 1, by default as f32."""
        return cls.scalar(builder, 1, dtype or "f32")

    @classmethod
    def iota(cls, builder: interop.XlaBuilder, shape: Shape, iota_dimension: int) -> "Op":
        """Return an array of this shape whose elements are their index along a dimension."""
        return mkleaf("Iota", builder, shape=shape.shape, iota_dimension=iota_dimension)

    @classmethod
    def sort(
        cls, ops: Sequence["Op"], comparator: object, dimension: int | None = None, is_stable: bool | None = None
    ) -> "Op":
        """Sort arrays together, always stably. `comparator` takes two elements of each array, in turn.

        XLA's own sort runs if `comparator` is `<` or `>` of the first array's elements. Any other comparator compares
        all pairs of a row.
        """
        return mkop("Sort", ops, comparator=comparator, dimension=dimension, is_stable=is_stable)

    @classmethod
    def map(
        cls,
        ops: Sequence["Op"],
        computation: object,
        dimensions: Sequence[int],
        static_operands: Sequence[object] = (),
        builder: object = None,
    ) -> "Op":
        """Apply a computation of scalars to the elements at each index."""
        del builder
        return mkop("Map", ops, computation=computation, dimensions=dimensions, static_operands=static_operands)

    @classmethod
    def to_torch_type(cls, dtype: str) -> torch.dtype:
        """Return PyTorch's dtype for XLA's name of an element type."""
        return dtypes.to_torch(interop.builder_dtype(dtype))

    @classmethod
    def from_torch_type(cls, dtype: torch.dtype) -> str:
        """Return XLA's name for a dtype of PyTorch."""
        return interop.dtype_name(dtypes.to_jax(dtype))

    def scalar_like(self, value: object) -> "Op":
        """Return an array of this shape with the same number everywhere."""
        return mkop("ScalarLike", (self,), value=value)

    def zeros_like(self) -> "Op":
        """Return an array of this shape full of zeros."""
        return self.scalar_like(0)

    def ones_like(self) -> "Op":
        """Return an array of this shape full of ones."""
        return self.scalar_like(1)

    acos = _of_one("Acos")
    asin = _of_one("Asin")
    atan = _of_one("Atan")
    ceil = _of_one("Ceil")
    cos = _of_one("Cos")
    cosh = _of_one("Cosh")
    erf = _of_one("Erf")
    erfc = _of_one("Erfc")
    erfinf = _of_one("ErfInv")
    exp = _of_one("Exp")
    expm1 = _of_one("Expm1")
    floor = _of_one("Floor")
    log = _of_one("Log")
    log1p = _of_one("Log1p")
    sqrt = _of_one("Sqrt")
    real = _of_one("Real")
    imag = _of_one("Imag")
    clz = _of_one("Clz")
    conj = _of_one("Conj")
    rsqrt = _of_one("Rsqrt")
    sin = _of_one("Sin")
    sinh = _of_one("Sinh")
    tan = _of_one("Tan")
    tanh = _of_one("Tanh")

    abs = _of_one("Abs")
    __abs__ = _of_one("Abs")
    __neg__ = _of_one("Neg")
    __invert__ = _of_one("Not")

    atan2 = _of_two("Atan2")
    max = _of_two("Max")
    min = _of_two("Min")
    __add__ = _of_two("Add")
    __sub__ = _of_two("Sub")
    __mul__ = _of_two("Mul")
    __matmul__ = _of_two("Dot")
    __truediv__ = _of_two("Div")
    __mod__ = _of_two("Rem")
    __pow__ = _of_two("Pow")
    __lshift__ = _of_two("ShiftLeft")
    __rshift__ = _of_two("ShiftRight")
    __xor__ = _of_two("Xor")
    __lt__ = _of_two("Lt")
    __le__ = _of_two("Le")
    __gt__ = _of_two("Gt")
    __ge__ = _of_two("Ge")
    __ne__ = _of_two("Ne")  # type: ignore[assignment]
    __eq__ = _of_two("Eq")  # type: ignore[assignment]
    __and__ = _of_two("And")
    __or__ = _of_two("Or")

    __radd__ = _reversed("Add")
    __rsub__ = _reversed("Sub")
    __rmul__ = _reversed("Mul")
    __rtruediv__ = _reversed("Div")
    __rmod__ = _reversed("Rem")
    __rpow__ = _reversed("Pow")
    __rand__ = _reversed("And")
    __ror__ = _reversed("Or")
    __rxor__ = _reversed("Xor")
    __hash__ = object.__hash__


def _refuse_dynamic(name: str) -> NoReturn:
    raise NotImplementedError(
        f"Op.{name}: sizes of programs here are numbers. Pad what varies to a few sizes, or export the model with "
        f"torch.export.Dim and torch_xla.stablehlo"
    )
