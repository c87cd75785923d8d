"""Factorizations of matrices: Cholesky, LU, QR, eigenvalues and singular values."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.lax import linalg

from ...compat.names import jax as private
from ..machinery.registry import lowers

aten = torch.ops.aten

INT32 = np.dtype(np.int32)


def refuse_check(check_errors: bool) -> None:
    """Refuse a check for errors: a program on a device cannot raise, so it runs where it can."""
    if check_errors:
        raise NotImplementedError("a singular matrix is an error only on the CPU")


def nothing(like: jax.Array) -> jax.Array:
    """Return the empty tensor that PyTorch returns for a result that was not requested."""
    return jnp.zeros(0, like.dtype)


def identity_like(matrix: jax.Array) -> jax.Array:
    """Return identity matrices with the shape and dtype of `matrix`."""
    return jnp.broadcast_to(jnp.eye(matrix.shape[-2], matrix.shape[-1], dtype=matrix.dtype), matrix.shape)


@lowers(aten.linalg_cholesky_ex.default)
def cholesky_ex(self: jax.Array, *, upper: bool = False, check_errors: bool = False) -> tuple[jax.Array, jax.Array]:
    refuse_check(check_errors)
    lower = self.conj().mT if upper else self
    if self.size == 0:
        return self, jnp.zeros(self.shape[:-2], INT32)
    factor = linalg.cholesky(lower, symmetrize_input=False)
    failed = jnp.isnan(jnp.diagonal(factor, axis1=-2, axis2=-1)).any(-1)
    info = lax.cond(failed.any(), _first_minor_not_positive, lambda matrix: jnp.zeros(failed.shape, INT32), lower)
    return factor.conj().mT if upper else factor, info


def _first_minor_not_positive(lower: jax.Array) -> jax.Array:
    """Return the order of the first leading minor that is not positive: elimination, one column after the other."""
    size = lower.shape[-1]
    row = lax.iota(INT32, size)

    def eliminate(step: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rest, info = state
        column = lax.dynamic_index_in_dim(rest, step, axis=-1, keepdims=False)
        pivot = lax.dynamic_index_in_dim(column, step, axis=-1, keepdims=False).real
        info = jnp.where((info == 0) & ~(pivot > 0), step.astype(INT32) + 1, info)
        below = jnp.where(row > step, column, 0)
        return rest - below[..., :, None] * below.conj()[..., None, :] / pivot[..., None, None], info

    start = lower, jnp.zeros(lower.shape[:-2], INT32)
    return lax.fori_loop(np.int32(0), np.int32(size), eliminate, start)[1]


def lu(matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return L and U in one matrix, the row swaps counted from 1, and the order of the first pivot that is 0."""
    batch, rank = matrix.shape[:-2], min(matrix.shape[-2:])
    if matrix.size == 0:
        return matrix, jnp.zeros((*batch, rank), INT32), jnp.zeros(batch, INT32)
    if matrix.dtype == np.float64:
        factors, swaps = lax.platform_dependent(matrix, tpu=by_columns, default=_by_library)
    else:
        factors, swaps = _by_library(matrix)
    zero = jnp.diagonal(factors, axis1=-2, axis2=-1) == 0
    info = jnp.where(zero.any(-1), jnp.argmax(zero, -1).astype(INT32) + 1, 0)
    return factors, swaps.astype(INT32) + 1, info


def _by_library(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    factors, swaps, _ = linalg.lu(matrix)
    return factors, swaps


def by_columns(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return L and U in one matrix, and the row swaps counted from 0: elimination, one column after the other.

    XLA has no LU of float64 on a TPU.
    """
    rows, columns = matrix.shape[-2:]
    row, column = lax.iota(INT32, rows), lax.iota(INT32, columns)

    def eliminate(step: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rest, swaps = state
        sizes = jnp.where(row >= step, jnp.abs(lax.dynamic_index_in_dim(rest, step, -1, keepdims=False)), -1)
        swap = jnp.argmax(sizes, -1).astype(INT32)[..., None]
        order = jnp.where(row == step, swap, jnp.where(row == swap, step, row))
        rest = jnp.take_along_axis(rest, order[..., None], -2)
        pivots = lax.dynamic_index_in_dim(rest, step, -2, keepdims=False)
        divisor = lax.dynamic_index_in_dim(pivots, step, -1)
        below = lax.dynamic_index_in_dim(rest, step, -1, keepdims=False)
        factors = jnp.where(row > step, below / jnp.where(divisor == 0, 1, divisor), 0)
        rest = rest - factors[..., :, None] * jnp.where(column > step, pivots, 0)[..., None, :]
        rest = jnp.where((column == step) & (row[:, None] > step), factors[..., :, None], rest)
        return rest, lax.dynamic_update_index_in_dim(swaps, swap, step, -1)

    rank = min(rows, columns)
    start = matrix, jnp.zeros((*matrix.shape[:-2], rank), INT32)
    return lax.fori_loop(np.int32(0), np.int32(rank), eliminate, start)


@lowers(aten.linalg_lu_factor_ex.default)
def lu_factor_ex(
    A: jax.Array, *, pivot: bool = True, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    refuse_check(check_errors)
    if not pivot:
        raise NotImplementedError("LU without pivoting")
    return lu(A)


def permutation(pivots: jax.Array, size: int) -> jax.Array:
    """Return the order of the rows after the swaps."""
    if pivots.size == 0:
        return jnp.broadcast_to(lax.iota(INT32, size), (*pivots.shape[:-1], size))
    return linalg.lu_pivots_to_permutation(pivots - 1, size)


@lowers(aten.lu_unpack.default)
def lu_unpack(
    LU_data: jax.Array, LU_pivots: jax.Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[jax.Array, jax.Array, jax.Array]:
    rows, columns = LU_data.shape[-2:]
    rank = min(rows, columns)
    P, L, U = nothing(LU_data), nothing(LU_data), nothing(LU_data)
    if unpack_pivots:
        order = permutation(LU_pivots.reshape(*LU_data.shape[:-2], rank), rows)
        P = (order[..., None, :] == lax.iota(INT32, rows)[:, None]).astype(LU_data.dtype)
    if unpack_data:
        left = LU_data[..., :rank]
        L = jnp.tril(left, -1) + identity_like(left)
        U = jnp.triu(LU_data[..., :rank, :])
    return P, L, U


@lowers(aten.linalg_lu.default)
def linalg_lu(A: jax.Array, *, pivot: bool = True) -> tuple[jax.Array, jax.Array, jax.Array]:
    return lu_unpack(*lu_factor_ex(A, pivot=pivot)[:2])


@lowers(aten.linalg_qr.default)
def qr(A: jax.Array, mode: str = "reduced") -> tuple[jax.Array, jax.Array]:
    rows, columns = A.shape[-2:]
    if A.size == 0:
        # Without columns, any orthonormal basis will do.
        rank = rows if mode == "complete" else min(rows, columns)
        Q = identity_like(jnp.zeros((*A.shape[:-2], rows, rank), A.dtype))
        R = jnp.zeros((*A.shape[:-2], rank, columns), A.dtype)
    else:
        Q, R = linalg.qr(A, full_matrices=mode == "complete")
    return nothing(A) if mode == "r" else Q, R


@lowers(aten.geqrf.default)
def geqrf(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    if self.size == 0:
        return self, jnp.zeros((*self.shape[:-2], min(self.shape[-2:])), self.dtype)
    reflectors, factors = private.geqrf(self)
    return reflectors, factors


@lowers(aten.linalg_householder_product.default)
def householder_product(input: jax.Array, tau: jax.Array) -> jax.Array:
    return linalg.householder_product(input, tau) if input.size else input


@lowers(aten.ormqr.default)
def ormqr(
    self: jax.Array, input2: jax.Array, input3: jax.Array, left: bool = True, transpose: bool = False
) -> jax.Array:
    return linalg.ormqr(self, input2, input3, left=left, transpose=transpose) if input3.size else input3


@lowers(aten._linalg_eigh.default)
def eigh(A: jax.Array, UPLO: str = "L", compute_v: bool = True) -> tuple[jax.Array, jax.Array]:
    if A.size == 0:
        return jnp.zeros(A.shape[:-1], A.real.dtype), A if compute_v else nothing(A)
    vectors, values = linalg.eigh(A, lower=UPLO.upper() == "L", symmetrize_input=False)
    return values, vectors if compute_v else nothing(A)


def _eig(matrix: jax.Array, vectors: bool) -> list[jax.Array]:
    if jax.default_backend() != "cpu":
        raise NotImplementedError("XLA finds eigenvalues of matrices that are not symmetric on a CPU only")
    dtype = jnp.result_type(matrix.dtype, np.complex64)
    if matrix.size == 0:
        return [jnp.zeros(matrix.shape[:-1], dtype), matrix.astype(dtype)]
    return linalg.eig(matrix, compute_left_eigenvectors=False, compute_right_eigenvectors=vectors)


@lowers(aten.linalg_eig.default)
def eig(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    values, vectors = _eig(self, vectors=True)
    return values, vectors


@lowers(aten._linalg_eigvals.default)
def eigvals(self: jax.Array) -> jax.Array:
    return _eig(self, vectors=False)[0]


@lowers(aten._linalg_svd.default)
def svd(
    A: jax.Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    rows, columns = A.shape[-2:]
    if not compute_uv:
        values = linalg.svd(A, compute_uv=False) if A.size else jnp.zeros((*A.shape[:-2], min(rows, columns)))
        return nothing(A), values.astype(A.real.dtype), nothing(A)
    if A.size == 0:
        rank = min(rows, columns)
        sides = ((rows, rows if full_matrices else rank), (columns if full_matrices else rank, columns))
        U, Vh = (identity_like(jnp.zeros((*A.shape[:-2], *side), A.dtype)) for side in sides)
        return U, jnp.zeros((*A.shape[:-2], rank), A.real.dtype), Vh
    U, S, Vh = linalg.svd(A, full_matrices=full_matrices, compute_uv=True)
    return U, S, Vh
