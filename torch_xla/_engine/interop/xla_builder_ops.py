"""The operations of XLA's builder by their names, as functions of arrays.

Operands come first, as arrays or tuples of arrays, everything else by keyword. A computation among the keywords is a
function of arrays.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

Form = Callable[..., Any]

UNARY: dict[str, Form] = {
    "Abs": lax.abs, "Acos": lax.acos, "Asin": lax.asin, "Atan": lax.atan, "Ceil": lax.ceil, "Clz": lax.clz,
    "Conj": lax.conj, "Cos": lax.cos, "Cosh": lax.cosh, "Erf": lax.erf, "Erfc": lax.erfc, "ErfInv": lax.erf_inv,
    "Exp": lax.exp, "Expm1": lax.expm1, "Floor": lax.floor, "Imag": lax.imag, "Log": lax.log, "Log1p": lax.log1p,
    "Neg": lax.neg, "Not": lax.bitwise_not, "Real": lax.real, "Rsqrt": lax.rsqrt, "Sin": lax.sin, "Sinh": lax.sinh,
    "Sqrt": lax.sqrt, "Tan": lax.tan, "Tanh": lax.tanh,
}  # fmt: skip

_BINARY: dict[str, Form] = {
    "Add": lax.add, "And": lax.bitwise_and, "Atan2": lax.atan2, "Div": lax.div, "Eq": lax.eq, "Ge": lax.ge,
    "Gt": lax.gt, "Le": lax.le, "Lt": lax.lt, "Max": lax.max, "Min": lax.min, "Mul": lax.mul, "Ne": lax.ne,
    "Or": lax.bitwise_or, "Pow": lax.pow, "Rem": lax.rem, "Sub": lax.sub, "Xor": lax.bitwise_xor,
}  # fmt: skip


def _broadcasting(form: Form) -> Form:
    """Repeat scalars and dimensions of size one; dtypes must agree, as XLA demands."""

    def run(left: Any, right: Any) -> jax.Array:
        if left.dtype != right.dtype:
            raise TypeError(f"both operands have one dtype; got {left.dtype} and {right.dtype}. Use Op.cast.")
        if left.ndim != right.ndim and left.ndim and right.ndim:
            raise ValueError(f"operands have one rank, or one is a scalar; got {left.shape} and {right.shape}")
        return form(*jnp.broadcast_arrays(left, right))

    return run


def gather(
    x: jax.Array,
    start_indices: jax.Array,
    *,
    offset_dims: Sequence[int],
    collapsed_slice_dims: Sequence[int],
    start_index_map: Sequence[int],
    index_vector_dim: int,
    indices_are_sorted: bool | None = None,
    slice_sizes: Sequence[int] | None = None,
) -> jax.Array:
    """Return slices of `x`; unless given, they are 1 long in collapsed dimensions and whole in the others."""
    numbers = lax.GatherDimensionNumbers(tuple(offset_dims), tuple(collapsed_slice_dims), tuple(start_index_map))
    sizes = slice_sizes or [1 if place in collapsed_slice_dims else size for place, size in enumerate(x.shape)]
    return lax.gather(
        x, _vectors(start_indices, index_vector_dim), numbers, tuple(sizes),
        indices_are_sorted=bool(indices_are_sorted), mode="clip",
    )  # fmt: skip


def scatter(
    x: torch.Tensor,
    scatter_indices: object,
    updates: object,
    *,
    computation: Form,
    update_window_dims: Sequence[int],
    inserted_window_dims: Sequence[int],
    scatter_dims_to_operand_dims: Sequence[int],
    index_vector_dim: int,
    indices_are_sorted: bool | None = None,
    unique_indices: bool | None = None,
) -> jax.Array | tuple[jax.Array, ...]:
    """Replace elements of `x` at the indices by `computation(old, update)`; skip indices that are out of range."""
    scalar = jax.ShapeDtypeStruct((), x.dtype)
    closed = jax.make_jaxpr(lambda old, new: _only(computation(old, new)))(scalar, scalar)
    numbers = lax.ScatterDimensionNumbers(
        tuple(update_window_dims), tuple(inserted_window_dims), tuple(scatter_dims_to_operand_dims)
    )
    return lax.scatter_p.bind(
        x,
        _vectors(scatter_indices, index_vector_dim),
        updates,
        dimension_numbers=numbers,
        indices_are_sorted=bool(indices_are_sorted),
        unique_indices=bool(unique_indices),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
        update_jaxpr=closed.jaxpr,
        update_consts=tuple(closed.consts),
    )


def _vectors(indices: Any, dim: int) -> jax.Array:
    """Move the index vectors to the last dimension."""
    return indices[..., None] if dim == indices.ndim else jnp.moveaxis(indices, dim, -1)


def _only(result: object) -> jax.Array | tuple[jax.Array, ...]:
    leaves = jax.tree.leaves(result)
    if len(leaves) != 1:
        raise ValueError(f"this computation gives one value; it gave {len(leaves)}")
    return leaves[0]


def convolution(
    x: Any,
    kernel: Any,
    *,
    window_strides: Sequence[int],
    padding: Any = "valid",
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision_config: Any = None,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimensions: Any = None,
) -> jax.Array:
    """Return a convolution; `dimensions` has the positions of batch, features and space in input, kernel and output."""
    space = tuple(range(2, x.ndim))
    chosen = dimensions or [(0, 1, *space)] * 3
    numbers = lax.ConvDimensionNumbers(*(tuple(each) for each in chosen))
    return lax.conv_general_dilated(
        x, kernel, tuple(window_strides), _padding(padding), lhs_dilation, rhs_dilation, numbers,
        feature_group_count, batch_group_count, precision_config,
    )  # fmt: skip


def _padding(padding: Any) -> Any:
    return padding.upper() if isinstance(padding, str) else [tuple(each) for each in padding]


def reduce(x: object, init: object, *, computation: Form, dimensions: Sequence[int]) -> jax.Array:
    """Reduce `x` along `dimensions`."""
    return lax.reduce(x, init, lambda left, right: _only(computation(left, right)), tuple(dimensions))


def reduce_all(x: jax.Array, init: Any, *, computation: Form) -> jax.Array:
    """Reduce `x` along all dimensions."""
    return reduce(x, init, computation=computation, dimensions=range(x.ndim))


def reduce_window(
    x: object, init: Any, *, computation: Form, window_dimensions: Any, window_strides: Any, padding: object = "valid"
) -> tuple[jax.Array, ...]:
    """Reduce each window of `x`."""
    return lax.reduce_window(
        x, init, lambda left, right: _only(computation(left, right)), tuple(window_dimensions), tuple(window_strides),
        _padding(padding),
    )  # fmt: skip


def select_and_scatter(
    x: torch.Tensor,
    source: object,
    init: object,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    select_computation: Form,
    scatter_computation: Form,
    padding: object = "valid",
) -> jax.Array:
    """Return the gradient of a pooling: each element of `source` is added at the element that its window selects."""
    scalar = jax.ShapeDtypeStruct((), x.dtype)
    chosen, added = (
        jax.make_jaxpr(lambda left, right, each=each: _only(each(left, right)))(scalar, scalar)
        for each in (select_computation, scatter_computation)
    )
    pads = _padding(padding)
    if isinstance(pads, str):
        pads = lax.padtype_to_pads(x.shape, tuple(window_dimensions), tuple(window_strides), pads)
    found = lax.select_and_scatter_p.bind(
        x,
        source,
        init,
        select_jaxpr=chosen.jaxpr,
        select_consts=tuple(chosen.consts),
        scatter_jaxpr=added.jaxpr,
        scatter_consts=tuple(added.consts),
        window_dimensions=tuple(window_dimensions),
        window_strides=tuple(window_strides),
        padding=tuple(map(tuple, pads)),
    )
    return found


def max_pool(
    x: Any,
    *,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    batch_dimension: int,
    feature_dimension: int,
    spatial_dimensions: Sequence[int],
    padding: object = "valid",
) -> tuple[jax.Array, ...]:
    """Return the largest element of each window over the spatial dimensions."""
    window, strides, pads = [1] * x.ndim, [1] * x.ndim, [(0, 0)] * x.ndim
    del batch_dimension, feature_dimension  # all that is not spatial
    for place, size, step in zip(spatial_dimensions, kernel_size, stride, strict=True):
        window[place], strides[place] = size, step
    given = _padding(padding)
    if not isinstance(given, str):
        for place, pair in zip(spatial_dimensions, given, strict=True):
            pads[place] = pair
        given = pads
    least = -np.inf if jnp.issubdtype(x.dtype, np.floating) else jnp.iinfo(x.dtype).min
    return lax.reduce_window(x, np.asarray(least, x.dtype), lax.max, tuple(window), tuple(strides), given)


def sort(
    *arrays: jax.Array, comparator: Form, dimension: int | None = None, is_stable: bool | None = None
) -> jax.Array | tuple[jax.Array, ...]:
    """Sort the arrays together by `comparator`, which takes two elements of each array, left and right in turn."""
    axis = (arrays[0].ndim - 1) if dimension is None else dimension % arrays[0].ndim
    order = _order(arrays, axis, comparator)
    found = tuple(jnp.take_along_axis(each, order, axis) for each in arrays)
    return found if len(found) > 1 else found[0]


def _order(arrays: Sequence[jax.Array], axis: int, comparator: Form) -> jax.Array:
    elements = [jax.ShapeDtypeStruct((), each.dtype) for each in arrays for _ in "lr"]
    jaxpr = jax.make_jaxpr(lambda *pairs: _only(comparator(*pairs)))(*elements).jaxpr
    first, second = jaxpr.invars[:2]
    if len(jaxpr.eqns) == 1 and jaxpr.eqns[0].outvars == jaxpr.outvars:
        name, operands = jaxpr.eqns[0].primitive.name, jaxpr.eqns[0].invars
        if name in ("lt", "gt") and set(operands) == {first, second}:
            return jnp.argsort(arrays[0], axis=axis, descending=(name == "gt") is (operands[0] is first))
    return _order_by_counting(arrays, axis, comparator)


def _order_by_counting(arrays: Sequence[jax.Array], axis: int, comparator: Form) -> jax.Array:
    """Sort by any other comparator: count for each element the ones before it; equal ones keep their order."""

    def along(*rows: jax.Array) -> jax.Array:
        left = [row[:, None] for row in rows]
        right = [row[None, :] for row in rows]
        before = over(
            lambda *pairs: _only(comparator(*pairs)), *(x for pair in zip(left, right, strict=True) for x in pair)
        )
        earlier = jnp.arange(rows[0].shape[0])
        first = before | (~before.T & (earlier[:, None] < earlier[None, :]))
        return jnp.argsort(first.sum(0))

    moved = [jnp.moveaxis(each, axis, -1).reshape(-1, each.shape[axis]) for each in arrays]
    order = jax.vmap(along)(*moved)
    shape = [*arrays[0].shape[:axis], *arrays[0].shape[axis + 1 :], arrays[0].shape[axis]]
    return jnp.moveaxis(order.reshape(shape), -1, axis)


def over(computation: Form, *arrays: jax.Array) -> jax.Array:
    """Run `computation`, of scalars, at each place of the arrays."""
    arrays = tuple(jnp.broadcast_arrays(*arrays))
    found = jax.vmap(computation)(*(each.reshape(-1) for each in arrays))
    return jax.tree.map(lambda each: each.reshape(arrays[0].shape), found)


def element_wise(
    *arrays: jax.Array, computation: Form, dimensions: Sequence[int], static_operands: Sequence[object] = ()
) -> jax.Array:
    """Run `computation`, of scalars, at each place; `dimensions` are those of the operands."""
    if list(dimensions) != list(range(arrays[0].ndim)):
        raise ValueError(f"Map goes over all dimensions, 0 to {arrays[0].ndim - 1}; got {list(dimensions)}")
    return over(lambda *scalars: _only(computation(*scalars, *static_operands)), *arrays)


def reshape(x: jax.Array, *, sizes: Sequence[int], dimensions: Sequence[int] | None = None) -> jax.Array:
    """Return `x` in another shape, its dimensions read in the order `dimensions`."""
    return lax.reshape(x, tuple(sizes), None if dimensions is None else tuple(dimensions))


def broadcast_in_dim(x: jax.Array, *, sizes: Sequence[int], dimensions: Sequence[int]) -> jax.Array:
    """Return `x` repeated to `sizes`; its dimensions become `dimensions`."""
    return lax.broadcast_in_dim(x, tuple(sizes), tuple(dimensions))


def slice_in_dim(x: jax.Array, *, start_index: int, limit_index: int, dimno: int, stride: int = 1) -> jax.Array:
    """Return a slice along one dimension."""
    return lax.slice_in_dim(x, start_index, limit_index, stride, dimno)


def triangular_solve(
    a: jax.Array,
    b: jax.Array,
    *,
    left_side: bool | None = None,
    lower: bool | None = None,
    unit_diagonal: bool | None = None,
    transpose_a: bool | None = None,
) -> jax.Array:
    """Solve `a x = b`, or `x a = b`, for `x`."""
    return lax.linalg.triangular_solve(
        a, b, left_side=bool(left_side), lower=bool(lower), unit_diagonal=bool(unit_diagonal),
        transpose_a=bool(transpose_a),
    )  # fmt: skip


def conditional(
    predicate: object, true_operand: object, false_operand: object, *, true_computation: Form, false_computation: Form
) -> jax.Array:
    """Return one of two computations of their operands."""
    return lax.cond(predicate, lambda: true_computation(true_operand), lambda: false_computation(false_operand))


def while_loop(init: object, *, condition_computation: Form, body_computation: Form) -> Any:
    """Return what `init` becomes."""
    return lax.while_loop(lambda state: _only(condition_computation(state)), body_computation, init)


def _size_of(x: jax.Array, *, dimension: int) -> object:
    return np.int32(x.shape[dimension])


def _scalar_like(x: jax.Array, *, value: float) -> jax.Array:
    return jnp.full(x.shape, value, x.dtype)


def _pad(x: jax.Array, value: Any, *, config: Sequence[Sequence[int]]) -> jax.Array:
    return lax.pad(x, value, [(low, high, inner) for low, high, inner in config])


FORMS: dict[str, Form] = {
    **UNARY,
    **{name: _broadcasting(form) for name, form in _BINARY.items()},
    "Broadcast": lambda x, *, sizes: lax.broadcast(x, tuple(sizes)),
    "BroadcastInDim": broadcast_in_dim,
    "BitcastConvertType": lambda x, *, to_type: lax.bitcast_convert_type(x, to_type),
    "Call": lambda *operands, computation: computation(*operands),
    "Clamp": lambda x, low, high: lax.clamp(low, x, high),
    "ConcatInDim": lambda *operands, dimension: lax.concatenate(operands, dimension),
    "Conditional": conditional,
    "Constant": lambda *, value: jnp.asarray(value),
    "ConvertElementType": lambda x, *, to_type: lax.convert_element_type(x, to_type),
    "ConvGeneralDilated": convolution,
    "Dot": lambda left, right, *, precision_config=None: jnp.dot(left, right, precision=precision_config),
    "DynamicSlice": lambda x, *starts, slice_sizes: lax.dynamic_slice(x, starts, tuple(slice_sizes)),
    "DynamicUpdateSlice": lambda x, update, *starts: lax.dynamic_update_slice(x, update, starts),
    "Gather": gather,
    "GetDimensionSize": _size_of,
    "GetTupleElement": lambda x, *, index: x[index],
    "Iota": lambda *, shape, iota_dimension: lax.broadcasted_iota(shape.dtype, shape.shape, iota_dimension),
    "Map": element_wise,
    "MaxPool": max_pool,
    "Pad": _pad,
    "Reduce": reduce,
    "ReduceAll": reduce_all,
    "ReduceWindow": reduce_window,
    "Reshape": reshape,
    "Rev": lambda x, *, dimensions: lax.rev(x, tuple(dimensions)),
    "ScalarLike": _scalar_like,
    "Scatter": scatter,
    "Select": lambda chosen, x, y: lax.select(chosen, x, y),
    "SelectAndScatter": select_and_scatter,
    "ShiftLeft": _broadcasting(lax.shift_left),
    "ShiftRight": _broadcasting(lax.shift_right_logical),
    "Slice": lambda x, *, start_indices, limit_indices, strides=None: lax.slice(
        x, start_indices, limit_indices, strides
    ),
    "SliceInDim": slice_in_dim,
    "Sort": sort,
    "Transpose": lambda x, *, permutation: lax.transpose(x, tuple(permutation)),
    "TriangularSolve": triangular_solve,
    "Tuple": lambda *operands: operands,
    "While": while_loop,
}


def inferred(size: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return `sizes` with the one that is -1 worked out. Raises `ValueError` where they do not hold the elements of
    `size`.
    """
    total, known = math.prod(size), math.prod(each for each in sizes if each != -1)
    missing = [place for place, each in enumerate(sizes) if each == -1]
    if len(missing) > 1 or (total % known if missing and known else total != known or missing):
        raise ValueError(f"a value of size {list(size)} cannot be reshaped to {list(sizes)}")
    return [total // known if each == -1 else each for each in sizes]
