"""Systems of equations, inverses, determinants and functions of matrices."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.lax import linalg

from ..machinery.opmath import widened
from ..machinery.registry import Promotion, lowers
from .factorizations import identity_like, lu, permutation, refuse_check, svd

aten = torch.ops.aten


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    """Return a matrix product in full precision, which is what these algorithms count on, on every device."""
    return jnp.matmul(left, right, precision=lax.Precision.HIGHEST)


def _triangular(
    A: jax.Array, B: jax.Array, *, left: bool = True, lower: bool = False, adjoint: bool = False, unit: bool = False
) -> jax.Array:
    """Solve op(A) · X = B, or X · op(A) = B, for X; batches are broadcast."""
    batch = jnp.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    A = jnp.broadcast_to(A, (*batch, *A.shape[-2:]))
    B = jnp.broadcast_to(B, (*batch, *B.shape[-2:]))
    if B.size == 0:
        return B
    return linalg.triangular_solve(
        A, B, left_side=left, lower=lower, transpose_a=adjoint, conjugate_a=adjoint, unit_diagonal=unit
    )


@lowers(aten.linalg_solve_triangular.default)
def solve_triangular(
    self: jax.Array, B: jax.Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> jax.Array:
    # PyTorch converts the right-hand sides, also complex ones to real.
    if jnp.iscomplexobj(B) and not jnp.iscomplexobj(self):
        B = B.real
    return _triangular(self, B.astype(self.dtype), left=left, lower=not upper, unit=unitriangular)


@lowers(aten.triangular_solve.default)
def triangular_solve(
    self: jax.Array, A: jax.Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[jax.Array, jax.Array]:
    matrix, lower = (A.mT, upper) if transpose else (A, not upper)
    solution = _triangular(matrix, self, lower=lower, unit=unitriangular)
    return solution, jnp.broadcast_to(A, (*solution.shape[:-2], *A.shape[-2:]))


@lowers(aten._cholesky_solve_helper.default)
def cholesky_solve(self: jax.Array, A: jax.Array, upper: bool) -> jax.Array:
    # A holds L, or U = Lᴴ.
    half = _triangular(A, self, lower=not upper, adjoint=upper)
    return _triangular(A, half, lower=not upper, adjoint=not upper)


@lowers(aten.cholesky_inverse.default)
def cholesky_inverse(self: jax.Array, upper: bool = False) -> jax.Array:
    return cholesky_solve(identity_like(self), self, upper)


@lowers(aten.linalg_lu_solve.default)
def lu_solve(LU: jax.Array, pivots: jax.Array, B: jax.Array, *, left: bool = True, adjoint: bool = False) -> jax.Array:
    if not left:
        # X · A = B is Aᴴ · Xᴴ = Bᴴ.
        return lu_solve(LU, pivots, B.conj().mT, adjoint=not adjoint).conj().mT
    order = permutation(pivots, LU.shape[-1])
    batch = jnp.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    B = jnp.broadcast_to(B, (*batch, *B.shape[-2:]))
    order = jnp.broadcast_to(order, (*batch, order.shape[-1]))[..., None]
    if not adjoint:
        half = _triangular(LU, jnp.take_along_axis(B, order, -2), lower=True, unit=True)
        return _triangular(LU, half)
    half = _triangular(LU, B, adjoint=True)
    solution = _triangular(LU, half, lower=True, adjoint=True, unit=True)
    return jnp.take_along_axis(solution, jnp.argsort(order, -2), -2)


def _is_vector(A: jax.Array, B: jax.Array) -> bool:
    """Return whether `B` holds one right-hand side for each matrix, without a separate dimension."""
    return B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])


@lowers(aten._linalg_solve_ex.default)
def solve_ex(
    A: jax.Array, B: jax.Array, *, left: bool = True, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    refuse_check(check_errors)
    LU, pivots, info = lu(A)
    vector = _is_vector(A, B)
    solution = lu_solve(LU, pivots, B[..., None] if vector else B, left=left)
    return solution[..., 0] if vector else solution, LU, pivots, info


@lowers(aten.linalg_inv_ex.default)
def inv_ex(A: jax.Array, *, check_errors: bool = False) -> tuple[jax.Array, jax.Array]:
    inverse, _, _, info = solve_ex(A, identity_like(A), check_errors=check_errors)
    return inverse, info


def _lu_of_det(A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the factors whose gradient formula PyTorch expects: of the transpose, if the matrix is real; and the
    sign.
    """
    LU, pivots, _ = lu(A if jnp.issubdtype(A.dtype, jnp.complexfloating) else A.mT)
    swaps = jnp.sum(pivots != lax.iota(np.int32, pivots.shape[-1]) + 1, -1)
    return LU, pivots, jnp.where(swaps % 2 == 1, -1, 1).astype(A.dtype)


@lowers(aten._linalg_det.default)
def det(A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    LU, pivots, sign = _lu_of_det(A)
    return sign * jnp.prod(jnp.diagonal(LU, axis1=-2, axis2=-1), -1), LU, pivots


@lowers(aten._linalg_slogdet.default)
def slogdet(A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    LU, pivots, sign = _lu_of_det(A)
    diagonal = jnp.diagonal(LU, axis1=-2, axis2=-1)
    return sign * jnp.prod(jnp.sign(diagonal), -1), jnp.sum(jnp.log(jnp.abs(diagonal)), -1), LU, pivots


@lowers(aten.linalg_lstsq.default)
def lstsq(
    self: jax.Array, b: jax.Array, rcond: float | None = None, *, driver: str | None = None
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    rows, columns = self.shape[-2:]
    vector = _is_vector(self, b)
    right = b[..., None] if vector else b
    tolerance = jnp.finfo(self.dtype).eps * max(rows, columns) if rcond is None else rcond
    U, values, Vh = svd(self)
    if driver == "gels":
        tolerance = 0.0
    used = values > tolerance * values[..., :1]
    inverses = jnp.where(used, 1 / values, jnp.zeros((), values.dtype)).astype(self.dtype)
    solution = _product(Vh.conj().mT, inverses[..., None] * _product(U.conj().mT, right))
    rank = jnp.zeros(0, np.int64) if driver == "gels" else jnp.sum(used, -1, dtype=np.int64)
    residuals = jnp.zeros(0, values.dtype)
    if driver not in (None, "gelsy") and rows > columns:
        residuals = jnp.sum(jnp.abs(right - _product(self, solution)) ** 2, -2)
    shown = values if driver in ("gelsd", "gelss") else jnp.zeros(0, values.dtype)
    return solution[..., 0] if vector else solution, residuals, rank, shown


@lowers(aten.linalg_pinv.atol_rtol_tensor)
def pinv(
    self: jax.Array, *, atol: jax.Array | None = None, rtol: jax.Array | None = None, hermitian: bool = False
) -> jax.Array:
    if self.size == 0:
        return jnp.zeros((*self.shape[:-2], self.shape[-1], self.shape[-2]), self.dtype)
    real = self.real.dtype
    default = jnp.asarray(max(self.shape[-2:]) * jnp.finfo(real).eps, real)
    absolute = jnp.zeros((), real) if atol is None else atol
    relative = jnp.where(absolute > 0, 0, default) if rtol is None else rtol
    if hermitian:
        V, values = linalg.eigh(self, symmetrize_input=False)
        U, sizes = V, jnp.abs(values)
        largest = jnp.max(sizes, -1, keepdims=True)
    else:
        U, values, Vh = svd(self)
        V, sizes, largest = Vh.conj().mT, values, values[..., :1]
    threshold = jnp.maximum(absolute[..., None], relative[..., None] * largest)
    inverses = jnp.where(sizes > threshold, 1 / values, jnp.zeros((), values.dtype)).astype(self.dtype)
    return _product(V * inverses[..., None, :], U.conj().mT)


@lowers(aten.linalg_matrix_exp.default)
def matrix_exp(self: jax.Array) -> jax.Array:
    # exp(A) = exp(A / 2ˢ) squared s times, where each squaring costs precision and the series needs a small norm.
    if self.size == 0:
        return self
    self = widened(self)
    real = self.real.dtype
    most = 1.0 if real == np.float64 else 3.0
    norm = jnp.max(jnp.sum(jnp.abs(self), -2), -1) / most
    halvings = jnp.ceil(jnp.log2(jnp.where(jnp.isfinite(norm) & (norm > 1), norm, 1.0)))
    small = self * (2.0**-halvings).astype(real)[..., None, None]
    result = _exp_series(small, degree=20)

    def square(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        step, matrix = state
        return step + 1, jnp.where((step < halvings)[..., None, None], _product(matrix, matrix), matrix)

    last = jnp.max(halvings)
    return lax.while_loop(lambda state: state[0] < last, square, (jnp.zeros((), last.dtype), result))[1]


def _exp_series(matrix: jax.Array, degree: int) -> jax.Array:
    """Return the Taylor series up to `degree`, a multiple of 4, with powers up to the fourth computed once."""
    square = _product(matrix, matrix)
    powers = [identity_like(matrix), matrix, square, _product(square, matrix)]
    fourth = _product(square, square)
    result = powers[0] / math.factorial(degree)
    for start in range(degree - 4, -1, -4):
        result = _product(result, fourth)
        for exponent, power in enumerate(powers):
            result = result + power / math.factorial(start + exponent)
    return result


@lowers(aten._compute_linear_combination.default)
def linear_combination(input: jax.Array, coefficients: jax.Array) -> jax.Array:
    return jnp.tensordot(coefficients, input, 1, precision=lax.Precision.HIGHEST)


@lowers(aten.linalg_cross.default, promotion=Promotion.COMMON)
def cross(self: jax.Array, other: jax.Array, *, dim: int = -1) -> jax.Array:
    self, other = jnp.broadcast_arrays(self, other)
    turned = self * jnp.roll(other, -1, dim) - jnp.roll(self, -1, dim) * other
    return jnp.roll(turned, -1, dim)
