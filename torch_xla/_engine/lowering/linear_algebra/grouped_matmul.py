"""`_grouped_mm`: grouped matrix products, each row by the matrix of its group."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.registry import lowers, lowers_named
from ..machinery.replica_axis import spread_target
from .matmul import accumulation_dtype, bmm, contract

aten = torch.ops.aten

# The number of rows that are multiplied at a time on the CPU.
_ROWS = 64


@lowers(aten._grouped_mm.default)
def grouped_mm(
    self: jax.Array,
    mat2: jax.Array,
    offs: jax.Array | None = None,
    bias: jax.Array | None = None,
    out_dtype: torch.dtype | None = None,
) -> jax.Array:
    # `offs` holds the ends of the groups along the dimension that they share.
    if bias is not None:
        raise NotImplementedError("_grouped_mm() with a bias")
    if offs is None:
        return bmm(self, mat2)
    ends = offs.astype(np.int32)
    if mat2.ndim == 3:
        return rows_by_group(self, mat2, ends)
    if self.ndim == 3:
        return rows_by_group(mat2.T, self.swapaxes(1, 2), ends).T
    return sums_by_group(self.T, mat2, ends)


# Mixtures of experts in Transformers call this operator under Dynamo, for dtypes other than bfloat16. Its own kernel
# reads the ends of the groups on the host and loops.
@lowers_named("transformers::grouped_mm_fallback")
def grouped_mm_of_transformers(input: jax.Array, weight: jax.Array, offs: jax.Array) -> jax.Array:
    return grouped_mm(input, weight, offs)


@lowers_named("transformers::grouped_mm_fallback_backward")
def grouped_mm_of_transformers_backward(
    input: jax.Array, weight: jax.Array, offs: jax.Array, grad_output: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return grouped_mm(grad_output, weight.swapaxes(1, 2), offs), grouped_mm(input.T, grad_output, offs)


def rows_by_group(rows: jax.Array, matrices: jax.Array, ends: jax.Array) -> jax.Array:
    """Return rows [m, k] times the matrix of their group in `matrices` [groups, k, n]; behind the last end are
    zeros.
    """
    return _on_cpu(_rows_in_blocks, _rows_at_once, rows, matrices, ends)


def sums_by_group(left: jax.Array, right: jax.Array, ends: jax.Array) -> jax.Array:
    """Return the outer products of the rows of `left` [m, k] and `right` [m, n], summed by group: [groups, k, n]."""
    return _on_cpu(_sums_in_blocks, _sums_at_once, left, right, ends)


def _on_cpu(blocks: Callable[..., jax.Array], at_once: Callable[..., jax.Array], *operands: jax.Array) -> jax.Array:
    # For the CPU, XLA has no such product: all rows would be multiplied by the matrices of all groups.
    if spread_target() is not None or not all(operand.size for operand in operands):
        return at_once(*operands)
    return lax.platform_dependent(*operands, cpu=blocks, default=at_once)


def _rows_at_once(rows: jax.Array, matrices: jax.Array, ends: jax.Array) -> jax.Array:
    return _ragged(rows, matrices, ends, lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0]))


def _sums_at_once(left: jax.Array, right: jax.Array, ends: jax.Array) -> jax.Array:
    return _ragged(left, right, ends, lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], []))


def _ragged(left: jax.Array, right: jax.Array, ends: jax.Array, numbers: lax.RaggedDotDimensionNumbers) -> jax.Array:
    sizes = jnp.diff(ends, prepend=np.int32(0)).astype(np.int32)
    accumulated = accumulation_dtype(left.dtype)
    return lax.ragged_dot_general(left, right, sizes, numbers, preferred_element_type=accumulated)


def _rows_in_blocks(rows: jax.Array, matrices: jax.Array, ends: jax.Array) -> jax.Array:
    size = _block(rows)
    padded = _filled_up(rows, size)

    def of_group(group: jax.Array, start: jax.Array, end: jax.Array, result: jax.Array) -> jax.Array:
        matrix = lax.dynamic_index_in_dim(matrices, group, keepdims=False)

        def multiply(number: jax.Array, result: jax.Array) -> jax.Array:
            first = start + number * size
            product = contract(lax.dynamic_slice_in_dim(padded, first, size), matrix, ((1,), (0,)))
            # Rows after the end belong to the next group, which overwrites them.
            return lax.dynamic_update_slice_in_dim(result, product, first, 0)

        return lax.fori_loop(jnp.zeros_like(end), _blocks(start, end, size), multiply, result)

    empty = jnp.zeros((len(padded), matrices.shape[2]), accumulation_dtype(rows.dtype))
    result = _over_groups(ends, of_group, empty)[: len(rows)]
    return jnp.where(jnp.arange(len(rows), dtype=ends.dtype)[:, None] < ends[-1], result, jnp.zeros((), result.dtype))


def _sums_in_blocks(left: jax.Array, right: jax.Array, ends: jax.Array) -> jax.Array:
    size = _block(left)
    padded = _filled_up(left, size), _filled_up(right, size)

    def of_group(group: jax.Array, start: jax.Array, end: jax.Array, result: jax.Array) -> jax.Array:
        def add(number: jax.Array, total: jax.Array) -> jax.Array:
            first = start + number * size
            own = first + jnp.arange(size, dtype=ends.dtype) < end
            one, other = (lax.dynamic_slice_in_dim(each, first, size) for each in padded)
            # Both, because zero times what is not finite is no zero.
            one, other = (jnp.where(own[:, None], each, jnp.zeros((), each.dtype)) for each in (one, other))
            return total + contract(one, other, ((0,), (0,)))

        total = lax.fori_loop(jnp.zeros_like(end), _blocks(start, end, size), add, jnp.zeros_like(result[0]))
        return lax.dynamic_update_index_in_dim(result, total, group, 0)

    empty = jnp.zeros((len(ends), left.shape[1], right.shape[1]), accumulation_dtype(left.dtype))
    return _over_groups(ends, of_group, empty)


def _block(rows: jax.Array) -> int:
    return min(_ROWS, len(rows))


def _blocks(start: jax.Array, end: jax.Array, size: int) -> jax.Array:
    return jnp.maximum(0, (end - start + size - 1) // size)


def _filled_up(rows: jax.Array, size: int) -> jax.Array:
    # The last block of a group goes on behind its end, and that of the last group behind all rows.
    return jnp.pad(rows, ((0, size), (0, 0)))


def _over_groups(ends: jax.Array, work: Callable[..., jax.Array], result: jax.Array) -> jax.Array:
    """Call `work(group, its first row, its end, result)` for each group, in order."""
    starts = jnp.concatenate([jnp.zeros((1,), ends.dtype), ends[:-1]])

    def once(group: jax.Array, result: jax.Array) -> jax.Array:
        return work(group, starts[group], ends[group], result)

    return lax.fori_loop(np.int32(0), np.int32(len(ends)), once, result)
