"""Grouped matrix products for mixtures of experts: each row by the matrix of its group."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import Tensor

from ..linear_algebra.grouped_matmul import rows_by_group, sums_by_group
from ..machinery.registry import lowers
from ..machinery.xla_op_schemas import define, differentiate


def grouped_product(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, transpose_rhs: bool, group_offset: jax.Array | None = None
) -> jax.Array:
    """Return rows of `lhs` [m, k] times the matrix of their group in `rhs` [groups, k, n]; rows of no group give zeros.

    With `group_offset` the matrices are those of the groups from there on; rows of others give zeros.
    """
    matrices = jnp.swapaxes(rhs, 1, 2) if transpose_rhs else rhs
    ends, before = _ends(group_sizes, group_offset, len(rhs))
    return jnp.roll(rows_by_group(jnp.roll(lhs, -before, 0), matrices, ends).astype(lhs.dtype), before, 0)


def grouped_outer_product(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, group_offset: jax.Array | None = None,
    groups: int | None = None,
) -> jax.Array:  # fmt: skip
    """Multiply the columns of `lhs` [k, m] by the rows of `rhs` [m, n], and sum by group: [groups, k, n].

    `groups` is the number of groups, from `group_offset` on; by default all of them.
    """
    ends, before = _ends(group_sizes, group_offset, len(group_sizes) if groups is None else groups)
    return sums_by_group(jnp.roll(lhs.T, -before, 0), jnp.roll(rhs, -before, 0), ends).astype(lhs.dtype)


def _ends(sizes: jax.Array, offset: jax.Array | None, groups: int) -> tuple[jax.Array, jax.Array | int]:
    """Return the ends of the groups from `offset` on, relative to the first row of the first of them, and that row."""
    sizes = sizes.astype(np.int32)
    if offset is None:
        return jnp.cumsum(sizes[:groups], dtype=np.int32), 0
    first = offset.reshape(()).astype(np.int32)
    before = jnp.where(jnp.arange(len(sizes)) < first, sizes, 0).sum(dtype=np.int32)
    return jnp.cumsum(lax.dynamic_slice(sizes, (first,), (groups,)), dtype=np.int32), before


def _product_like(
    lhs: Tensor, rhs: Tensor, sizes: Tensor, tiling: object = None, offset: object = None, transpose_rhs: bool = False
) -> Tensor:
    return lhs.new_empty(lhs.shape[0], rhs.shape[1 if transpose_rhs else 2])


GMM = define(
    "gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None, Tensor? group_offset=None, "
    "bool transpose_rhs=False) -> Tensor",
    _product_like,
)
TGMM = define(
    "tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None, Tensor? group_offset=None, "
    "int? num_actual_groups=None) -> Tensor",
    lambda lhs, rhs, sizes, tiling=None, offset=None, groups=None: lhs.new_empty(
        sizes.shape[0] if groups is None else groups, lhs.shape[0], rhs.shape[1]
    ),
)


@lowers(GMM)
def gmm(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    tiling: object = None,
    group_offset: jax.Array | None = None,
    transpose_rhs: bool = False,
) -> jax.Array:
    """Multiply rows by matrices; the tiling is a hint for TPUs."""
    return grouped_product(lhs, rhs, group_sizes, transpose_rhs, group_offset)


@lowers(TGMM)
def tgmm(
    lhs: Any, rhs: Any, group_sizes: Any, tiling: object = None, group_offset: Any = None, num_actual_groups: Any = None
) -> jax.Array:
    """Multiply columns by rows; the tiling is a hint for TPUs."""
    return grouped_outer_product(lhs, rhs, group_sizes, group_offset, num_actual_groups)


def _gradients(inputs: dict[str, torch.Tensor], grad: Tensor) -> dict[str, torch.Tensor]:
    lhs, rhs, sizes, offset = (inputs[name] for name in ("lhs", "rhs", "group_sizes", "group_offset"))
    transposed, count = inputs["transpose_rhs"], rhs.shape[0]
    of_rhs = torch.ops.xla.tgmm(lhs.t(), grad, sizes, None, offset, count)
    return {
        "lhs": torch.ops.xla.gmm(grad, rhs, sizes, None, offset, not transposed),
        "rhs": of_rhs.mT if transposed else of_rhs,
    }


def _gradients_of_sums(inputs: dict[str, torch.Tensor], grad: Tensor) -> dict[str, torch.Tensor]:
    lhs, rhs, sizes, offset = (inputs[name] for name in ("lhs", "rhs", "group_sizes", "group_offset"))
    return {
        "lhs": torch.ops.xla.gmm(rhs, grad, sizes, None, offset, True).t(),
        "rhs": torch.ops.xla.gmm(lhs.t(), grad, sizes, None, offset, False),
    }


differentiate(GMM, _gradients)
differentiate(TGMM, _gradients_of_sums)
