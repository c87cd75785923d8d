"""Matrix products and what PyTorch builds on them: linear layers, sums of products, integer and scaled products.

Narrow floats accumulate in float32 and are rounded once, at the end, as PyTorch's kernels do.
"""

from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ... import dtypes
from ..machinery.barrier import once_on_cpu
from ..machinery.opmath import FLOAT32, number_as, widened
from ..machinery.promotion import common_dtype
from ..machinery.registry import lowers
from ..machinery.replica_axis import spread_target

aten = torch.ops.aten

# Some dimensions of the left operand, and those of the right one that go with them.
Dims = tuple[tuple[int, ...], tuple[int, ...]]


def accumulation_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which products of `dtype` are summed up."""
    return FLOAT32 if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4 else np.dtype(dtype)


def contract(
    left: jax.Array,
    right: jax.Array,
    dims: Dims,
    batch: Dims = ((), ()),
) -> jax.Array:
    """Return the sum of products over `dims` of each operand, in the accumulation dtype; `batch` dimensions come
    first.
    """
    if (
        not batch[0]
        and dims[0] == dims[1]
        and len(dims[0]) > 1
        and _are_neighbours(dims[0])
        and spread_target() is None
    ):
        # Several devices gather what products read as it is once for all of them.
        left, right = (_merged(operand, dims[0]) for operand in (left, right))
        dims = dims[0][:1], dims[1][:1]
    if left.dtype == right.dtype == jnp.bfloat16:
        if not batch[0]:
            return _of_bfloat16(dims, left, right)
        if prod(left.shape[dim] for dim in batch[0]) == 1:
            return _of_one_batch(dims, batch, left, right)

    def product(left: jax.Array, right: jax.Array) -> jax.Array:
        return lax.dot_general(left, right, (dims, batch), preferred_element_type=accumulation_dtype(left.dtype))

    if left.dtype in (np.int64, np.uint64):
        # XLA has no product of 64-bit integers for a TPU, but their products and sums.
        return lax.platform_dependent(left, right, tpu=partial(_products_and_sums, dims, batch), default=product)
    return product(left, right)


def _products_and_sums(dims: Dims, batch: Dims, left: jax.Array, right: jax.Array) -> jax.Array:
    def ordered(array: jax.Array, own: tuple[int, ...], summed: tuple[int, ...]) -> tuple[jax.Array, list[int]]:
        free = [dim for dim in range(array.ndim) if dim not in own and dim not in summed]
        return lax.transpose(array, (*own, *free, *summed)), [array.shape[dim] for dim in free]

    (left, rows), (right, columns) = map(ordered, (left, right), batch, dims)
    lead, tail = len(batch[0]), tuple(range(-len(dims[0]), 0))
    left = jnp.expand_dims(left, tuple(range(lead + len(rows), lead + len(rows) + len(columns))))
    right = jnp.expand_dims(right, tuple(range(lead, lead + len(rows))))
    return jnp.sum(left * right, tail)


def _are_neighbours(dims: tuple[int, ...]) -> bool:
    return dims == tuple(range(dims[0], dims[0] + len(dims)))


def _merged(array: jax.Array, dims: tuple[int, ...]) -> jax.Array:
    # XLA:CPU can read a matrix transposed, but first transposes an array of more dimensions in memory, together with
    # all that was to be computed on the way. (It transposes batches of matrices in any case.)
    first, last = dims[0], dims[-1] + 1
    return array.reshape(*array.shape[:first], prod(array.shape[first:last]), *array.shape[last:])


def _of_bfloat16(dims: Dims, left: jax.Array, right: jax.Array) -> jax.Array:
    # XLA:CPU multiplies bfloat16 by instructions of the processor, at twice the speed of float32: but not one row, and
    # not a matrix that is to be read transposed. There it first converts both operands to float32, in memory.
    if right.ndim == len(dims[1]):
        left, right, dims = right, left, dims[::-1]
    if prod(left.shape) == prod(left.shape[dim] for dim in dims[0]) and right.ndim > len(dims[1]):
        on_cpu = _of_two_rows
    elif dims == ((0,), (0,)) and left.ndim == right.ndim == 2:
        on_cpu = _transposed_first
    else:
        return _summed_in_float32(dims, left, right)
    return lax.platform_dependent(left, right, cpu=partial(on_cpu, dims), default=partial(_summed_in_float32, dims))


def _of_one_batch(dims: Dims, batch: Dims, left: jax.Array, right: jax.Array) -> jax.Array:
    # XLA:CPU decides whether it multiplies bfloat16 before it drops the dimensions of a batch of one, and then may read
    # an operand transposed, which it cannot multiply: the program fails when it runs.
    def without(array: jax.Array, own: tuple[int, ...], summed: tuple[int, ...]) -> tuple[jax.Array, tuple[int, ...]]:
        left_out = [sum(other < dim for other in own) for dim in summed]
        return jnp.squeeze(array, own), tuple(dim - before for dim, before in zip(summed, left_out, strict=True))

    (left, left_dims), (right, right_dims) = map(without, (left, right), batch, dims)
    return jnp.expand_dims(_of_bfloat16((left_dims, right_dims), left, right), tuple(range(len(batch[0]))))


def _summed_in_float32(dims: Dims, left: jax.Array, right: jax.Array) -> jax.Array:
    return lax.dot_general(left, right, (dims, ((), ())), preferred_element_type=FLOAT32)


def _of_two_rows(dims: Dims, left: jax.Array, right: jax.Array) -> jax.Array:
    rows = jnp.broadcast_to(left, (2, *left.shape))
    return _summed_in_float32((tuple(dim + 1 for dim in dims[0]), dims[1]), rows, right)[0]


def _transposed_first(dims: Dims, left: jax.Array, right: jax.Array) -> jax.Array:
    # XLA sees through a barrier behind a transposition, but not through one behind a vector.
    transposed = lax.optimization_barrier(left.T.reshape(-1)).reshape(left.shape[::-1])
    return _summed_in_float32(((1,), (0,)), transposed, right)


@lowers(aten.mm.default, aten.mv.default, aten.dot.default)
def product(self: jax.Array, other: jax.Array) -> jax.Array:
    return _of_matrices(self, other, ((self.ndim - 1,), (0,)))


def _of_matrices(left: jax.Array, right: jax.Array, dims: Dims) -> jax.Array:
    """Return `contract` of two operands, whose one term keeps -0 if there are several rows and columns.

    So does the CPU's product of matrices, while those of vectors and of batches of matrices add to 0.
    """
    term = None if left.size == 1 or right.size == 1 else _one_term(left, right, dims)
    return contract(left, right, dims) if term is None else term


@lowers(aten.bmm.default)
def bmm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    return contract(self, mat2, ((2,), (1,)), ((0,), (0,)))


@lowers(aten.vdot.default)
def vdot(self: jax.Array, other: jax.Array) -> jax.Array:
    return contract(self.conj(), other, ((0,), (0,)))


@lowers(aten.matmul.default)
def matmul(self: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.matmul(self, other, preferred_element_type=accumulation_dtype(self.dtype))


@lowers(aten.matmul_backward.default)
def matmul_backward(
    grad: jax.Array, self: jax.Array, other: jax.Array, mask: list[bool]
) -> tuple[jax.Array | None, jax.Array | None]:
    # A vector is a matrix with one row (or column); then every product is one of matrices.
    row, column = self.ndim == 1, other.ndim == 1
    left = self[None, :] if row else self
    right = other[:, None] if column else other
    if row:
        grad = jnp.expand_dims(grad, -1 if column else -2)
    if column:
        grad = jnp.expand_dims(grad, -1)
    grad_left = summed_to(matmul(grad, right.conj().mT), left.shape).reshape(self.shape) if mask[0] else None
    grad_right = summed_to(matmul(left.conj().mT, grad), right.shape).reshape(other.shape) if mask[1] else None
    return grad_left, grad_right


def summed_to(value: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return `value` summed over the dimensions along which an operand of `shape` was broadcast."""
    added = value.ndim - len(shape)
    dims = tuple(range(added)) + tuple(
        added + dim for dim, size in enumerate(shape) if size == 1 and value.shape[added + dim] != 1
    )
    return jnp.sum(value, dims, dtype=value.dtype).reshape(shape) if dims else value


@lowers(aten.linear.default)
def linear(input: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    dims = (input.ndim - 1,), (weight.ndim - 1,)
    target, is_narrow = spread_target(), accumulation_dtype(input.dtype) != input.dtype
    if is_narrow and target is not None and not target.is_host:
        # Where devices divide the features, each sends its part of the sum: in the narrow dtype, half of the bytes, as
        # PyTorch's tensor parallelism and JAX do.
        products = lax.dot_general(input, weight, (dims, ((), ())), preferred_element_type=input.dtype)
        return products if bias is None else widened(products) + widened(bias)
    if bias is None:
        return _of_matrices(input, weight, dims)
    term = _one_term(input, weight, dims)
    return (contract(input, weight, dims) if term is None else term) + widened(bias)


@lowers(aten.linear_backward.default)
def linear_backward(
    self: jax.Array, grad_output: jax.Array, weight: jax.Array, output_mask: list[bool]
) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
    rows = tuple(range(self.ndim - 1))
    # The gradient is read three times; recomputing it, if it is itself a sum, can take as long as a product.
    grad_output = once_on_cpu(grad_output)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        if weight.ndim == 1:
            grad_input = grad_output[..., None] * weight.conj()
        else:
            grad_input = _of_matrices(grad_output, weight.conj(), ((grad_output.ndim - 1,), (0,)))
    if output_mask[1] and rows:
        grad_weight = _of_matrices(grad_output, self.conj(), (rows, rows))
    elif output_mask[1]:
        grad_weight = _of_matrices(grad_output[None], self.conj()[None], ((0,), (0,)))  # a matrix of one row
    if output_mask[2]:
        grad_bias = jnp.sum(widened(grad_output), rows, dtype=accumulation_dtype(grad_output.dtype))
    return grad_input, grad_weight, grad_bias


def _unless_empty(alpha: object, terms: int) -> object:
    """Return 1 for `alpha` if products have no terms: PyTorch leaves them out, so an infinite one makes no NaN."""
    return alpha if terms else 1


def _one_term(left: jax.Array, right: jax.Array, dims: Dims) -> jax.Array | None:
    """Return the product of matrices with inner size 1, to be added to others; none for other matrices.

    It keeps -0, so that -0 and -0 are -0 as on the CPU. `contract` adds each product to 0, as the CPU's kernels of
    bfloat16 do.
    """
    if any(left.shape[dim] != 1 for dim in dims[0]) or left.dtype not in (np.float32, np.float64):
        return None
    left, right = jnp.squeeze(left, dims[0]), jnp.squeeze(right, dims[1])
    return left.reshape(*left.shape, *(1,) * right.ndim) * right


def _plus(
    self: jax.Array, beta: object, products: jax.Array, alpha: object, terms: jax.Array | None = None
) -> jax.Array:
    """Return beta · self + alpha · products. A beta of 0 drops `self`, even where it is NaN.

    If `terms` are given, they are added in place of `products`, which they equal but for signs of zeros.
    """
    self = jnp.broadcast_to(self, products.shape)  # which may not enlarge the products, and raises if it does
    scaled = _times(products, alpha)
    if _is(beta, 0):
        return scaled
    added = scaled if terms is None else _times(terms, alpha)
    self = self.astype(products.dtype)
    if _is(beta, 1):
        return self + added
    total = self * number_as(beta, products.dtype) + added
    # For a known beta of 0 nothing is added, so that a product of -0.0 keeps its sign.
    return total if isinstance(beta, (bool, int, float, complex)) else jnp.where(beta == 0, scaled, total)


def _times(products: jax.Array, alpha: object) -> jax.Array:
    return products if _is(alpha, 1) else products * number_as(alpha, products.dtype)


def _is(number: object, value: int) -> bool:
    """Return whether a number is known to be `value`: false for one that changes between steps."""
    return isinstance(number, (bool, int, float, complex)) and number == value


@lowers(aten.addmm.default, aten.addmv.default)
def addmm(self: jax.Array, mat1: jax.Array, mat2: jax.Array, *, beta: object = 1, alpha: object = 1) -> jax.Array:
    alpha = _unless_empty(alpha, mat1.shape[-1])
    return _plus(self, beta, product(mat1, mat2), alpha, _one_term(mat1, mat2, ((1,), (0,))))


@lowers(aten.baddbmm.default)
def baddbmm(self: jax.Array, batch1: jax.Array, batch2: jax.Array, *, beta: object = 1, alpha: object = 1) -> jax.Array:
    return _plus(self, beta, bmm(batch1, batch2), _unless_empty(alpha, batch1.shape[-1]))


@lowers(aten.addbmm.default)
def addbmm(self: jax.Array, batch1: jax.Array, batch2: jax.Array, *, beta: object = 1, alpha: object = 1) -> jax.Array:
    products = contract(batch1, batch2, ((0, 2), (0, 1)))
    alpha = _unless_empty(alpha, batch1.shape[0] * batch1.shape[2])
    if len(batch1) != 1:
        return _plus(self, beta, products, alpha)
    return _plus(self, beta, products, alpha, _one_term(batch1[0], batch2[0], ((1,), (0,))))


@lowers(aten.addr.default)
def addr(self: jax.Array, vec1: jax.Array, vec2: jax.Array, *, beta: object = 1, alpha: object = 1) -> jax.Array:
    # Unlike its siblings it promotes the tensors (but not the numbers), the addend with the dimensions of the product,
    # and takes bools: there it means "or" and "and".
    tensors = [(dtypes.to_torch(operand.dtype), 1) for operand in (self, vec1, vec2)]
    dtype = dtypes.to_jax(common_dtype(tensors, []))
    self, vec1, vec2 = (widened(operand.astype(dtype)) for operand in (self, vec1, vec2))
    if dtype != np.bool_:
        return _plus(self, beta, vec1[:, None] * vec2, alpha)
    products = vec1[:, None] & vec2 & jnp.asarray(alpha != 0)
    return (self & jnp.asarray(beta != 0)) | products


@lowers(aten._addmm_activation.default)
def addmm_activation(
    self: jax.Array, mat1: jax.Array, mat2: jax.Array, *, beta: object = 1, alpha: object = 1, use_gelu: bool = False
) -> jax.Array:
    result = addmm(self, mat1, mat2, beta=beta, alpha=alpha)
    return jax.nn.gelu(result, approximate=False) if use_gelu else jnp.maximum(result, jnp.zeros((), result.dtype))


@lowers(aten.mm.dtype)
def mm_dtype(self: jax.Array, mat2: jax.Array, out_dtype: torch.dtype) -> jax.Array:
    # If its result is transposed, XLA:CPU transposes the product itself, and cannot run that of bfloat16.
    return once_on_cpu(product(self, mat2).astype(dtypes.to_jax(out_dtype)))


@lowers(aten.bmm.dtype)
def bmm_dtype(self: jax.Array, mat2: jax.Array, out_dtype: torch.dtype) -> jax.Array:
    return bmm(self, mat2).astype(dtypes.to_jax(out_dtype))


@lowers(aten.addmm.dtype)
def addmm_dtype(
    self: jax.Array, mat1: jax.Array, mat2: jax.Array, out_dtype: torch.dtype, *, beta: object = 1, alpha: object = 1
) -> jax.Array:
    return once_on_cpu(addmm(self, mat1, mat2, beta=beta, alpha=alpha).astype(dtypes.to_jax(out_dtype)))


@lowers(aten.baddbmm.dtype)
def baddbmm_dtype(
    self: jax.Array,
    batch1: jax.Array,
    batch2: jax.Array,
    out_dtype: torch.dtype,
    *,
    beta: object = 1,
    alpha: object = 1,
) -> jax.Array:
    return baddbmm(self, batch1, batch2, beta=beta, alpha=alpha).astype(dtypes.to_jax(out_dtype))


@lowers(aten._trilinear.default)
def trilinear(
    i1: jax.Array,
    i2: jax.Array,
    i3: jax.Array,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> jax.Array:
    # A sum of products over named dimensions; an operand lacks the dimensions it is expanded along.
    total = i1.ndim + len(expand1)
    names = [
        [dim for dim in range(total) if dim not in {e % total for e in expand}]
        for expand in (expand1, expand2, expand3)
    ]
    kept = [dim for dim in range(total) if dim not in {s % total for s in sumdim}]
    accumulated = accumulation_dtype(i1.dtype)

    def at_once(i1: jax.Array, i2: jax.Array, i3: jax.Array) -> jax.Array:
        return jnp.einsum(i1, names[0], i2, names[1], i3, names[2], kept, preferred_element_type=accumulated)

    def products_and_sums(*operands: jax.Array) -> jax.Array:
        expanded = (expand1, expand2, expand3)
        first, second, third = (
            jnp.expand_dims(each, tuple(dims)) for each, dims in zip(operands, expanded, strict=True)
        )
        return jnp.sum(first * second * third, tuple(sumdim))

    if i1.dtype in (np.int64, np.uint64):
        return lax.platform_dependent(i1, i2, i3, tpu=products_and_sums, default=at_once) + 0
    return at_once(i1, i2, i3) + 0  # the CPU adds to zeros


@lowers(aten._int_mm.default)
def int_mm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    return lax.dot_general(self, mat2, (((1,), (0,)), ((), ())), preferred_element_type=np.dtype(np.int32))


@lowers(aten._weight_int8pack_mm.default)
def weight_int8pack_mm(self: jax.Array, mat2: jax.Array, scales: jax.Array) -> jax.Array:
    # The weight is stored by output feature, as a linear layer's.
    return contract(self, mat2.astype(self.dtype), ((1,), (1,))) * widened(scales)


@lowers(aten._scaled_mm.default)
def scaled_mm(
    self: jax.Array,
    mat2: jax.Array,
    scale_a: jax.Array,
    scale_b: jax.Array,
    bias: jax.Array | None = None,
    scale_result: jax.Array | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> jax.Array:
    # One scale for a matrix, or one for each row of `self` and column of `mat2`: factors that leave the sum. The scale
    # of the result is a divisor, and counts only for a float8 dtype that was asked for.
    result = lax.dot_general(self, mat2, (((1,), (0,)), ((), ())), preferred_element_type=FLOAT32)
    result = result * scale_a * scale_b
    if bias is not None:
        result = result + widened(bias)
    if scale_result is None or out_dtype is None or out_dtype.itemsize > 1:
        return result
    return result / scale_result
