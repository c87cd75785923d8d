"""Norms of vectors, and distances between vectors."""

from collections.abc import Sequence
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ... import dtypes
from ..elementwise.complex_functions import magnitude
from ..machinery.dims import all_or_listed, one_dim, without
from ..machinery.opmath import is_complex, widened
from ..machinery.registry import Promotion, lowers

aten = torch.ops.aten


def magnitude_norm(magnitudes: jax.Array, order: float, dims: tuple[int, ...], keepdim: bool = False) -> jax.Array:
    """Return the norm of vectors along `dims`, from the absolute values of their elements."""
    if 0 in [magnitudes.shape[dim] for dim in dims]:  # 0, whatever the order
        return jnp.sum(magnitudes, dims, magnitudes.dtype, keepdims=keepdim)
    if order in (inf, -inf):
        return (jnp.max if order == inf else jnp.min)(magnitudes, dims, keepdims=keepdim)
    powers = _powers(magnitudes, order)
    total = jnp.sum(powers, dims, powers.dtype, keepdims=keepdim)
    if order in (0, 1):
        return total
    return jnp.sqrt(total) if order == 2 else total ** (1 / order)


def _powers(magnitudes: jax.Array, order: float) -> jax.Array:
    if order == 0:
        return (magnitudes != 0).astype(magnitudes.dtype)
    if order == 1:
        return magnitudes
    return lax.square(magnitudes) if order == 2 else magnitudes**order


def _magnitudes(self: jax.Array, dtype: torch.dtype | None) -> jax.Array:
    operand = self if dtype is None else self.astype(dtypes.to_jax(dtype))
    return magnitude(widened(operand))


@lowers(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    self: jax.Array,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    order, dims = float(ord), all_or_listed(dim, self.ndim)
    if order == 2 and is_complex(self):
        operand = self if dtype is None else self.astype(dtypes.to_jax(dtype))
        squares = lax.square(operand.real) + lax.square(operand.imag)
        return jnp.sqrt(jnp.sum(squares, dims, squares.dtype, keepdims=keepdim))
    return magnitude_norm(_magnitudes(self, dtype), order, dims, keepdim)


@lowers(aten.norm.Scalar, aten.norm.ScalarOpt_dtype, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype)
def norm(
    self: jax.Array,
    p: Any = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    return linalg_vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


# The sum of powers alone, for norms of distributed tensors; newer than PyTorch 2.11.
if hasattr(aten, "linalg__powsum"):

    @lowers(aten.linalg__powsum.default)
    def linalg_powsum(
        self: jax.Array,
        ord: float = 2,
        dim: Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> jax.Array:
        powers = _powers(_magnitudes(self, dtype), float(ord))
        return jnp.sum(powers, all_or_listed(dim, self.ndim), powers.dtype, keepdims=keepdim)


@lowers(aten.dist.default, promotion=Promotion.COMMON)
def dist(self: jax.Array, other: jax.Array, p: jax.Array | float = 2) -> jax.Array:
    return norm(widened(self) - widened(other), p)


@lowers(aten.renorm.default)
def renorm(self: jax.Array, p: float, dim: int, maxnorm: jax.Array | float) -> jax.Array:
    operand = widened(self)
    norms = norm(operand, p, without(one_dim(dim, self.ndim), self.ndim), keepdim=True)
    return operand * shrinking_factor(norms, maxnorm).astype(operand.dtype)


def shrinking_factor(norms: jax.Array, limit: Any) -> jax.Array:
    """Return the factor that shortens vectors longer than `limit` to this length."""
    return jnp.where(norms > limit, limit / (norms + 1e-7), jnp.ones_like(norms))


@lowers(aten._euclidean_dist.default)
def euclidean_dist(x1: jax.Array, x2: jax.Array) -> jax.Array:
    # |a - b|² = |a|² - 2ab + |b|² as one matrix product: less exact than the differences, and PyTorch's choice.
    squares1, squares2 = (jnp.sum(lax.square(x), -1, x.dtype, keepdims=True) for x in (x1, x2))
    left = jnp.concatenate([-2 * x1, squares1, jnp.ones_like(squares1)], -1)
    right = jnp.concatenate([x2, jnp.ones_like(squares2), squares2], -1)
    products = jnp.matmul(left, right.mT, precision=lax.Precision.HIGHEST)
    return jnp.sqrt(jnp.maximum(products, 0))


@lowers(aten._cdist_forward.default)
def cdist_forward(x1: jax.Array, x2: jax.Array, p: float, compute_mode: int | None) -> jax.Array:
    p = float(p)
    if p == 2 and x1.size and x2.size:
        large = x1.shape[-2] > 25 or x2.shape[-2] > 25
        if compute_mode == 1 or (large and not compute_mode):
            return euclidean_dist(x1, x2)
    differences = widened(x1)[..., :, None, :] - widened(x2)[..., None, :, :]
    return magnitude_norm(jnp.abs(differences), p, (differences.ndim - 1,))


def _slopes(differences: jax.Array, p: float, distances: jax.Array, grad: jax.Array) -> jax.Array:
    """Return `grad` times the derivative of each distance by each difference it was computed from."""
    if p == 0:
        return jnp.zeros_like(differences) * grad
    if p == 1:
        return jnp.sign(differences) * grad
    if p == inf:
        return jnp.where(jnp.abs(differences) == distances, jnp.sign(differences) * grad, 0)
    if p == 2:
        slopes = differences * (grad / distances)
    else:
        slopes = jnp.sign(differences) * jnp.abs(differences) ** (p - 1) * (grad / distances ** (p - 1))
    undefined = distances == 0
    if p < 1:
        undefined = undefined | (differences == 0)
    return jnp.where(undefined, 0, slopes)


@lowers(aten._cdist_backward.default)
def cdist_backward(grad: jax.Array, x1: jax.Array, x2: jax.Array, p: float, cdist: jax.Array) -> jax.Array:
    if not cdist.size or not x1.size:
        return jnp.zeros_like(x1)
    differences = widened(x1)[..., :, None, :] - widened(x2)[..., None, :, :]
    slopes = _slopes(differences, float(p), widened(cdist)[..., None], widened(grad)[..., None])
    return jnp.sum(slopes, -2, slopes.dtype)


def _pairs(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the rows of each pair of rows, in the order (0, 1), (0, 2), ..., (1, 2), ..."""
    first, second = jnp.triu_indices(self.shape[0], 1)
    return first, second


@lowers(aten._pdist_forward.default)
def pdist_forward(self: jax.Array, p: float = 2.0) -> jax.Array:
    count, size = self.shape[:2]
    # Of more than two dimensions PyTorch takes vectors as long as the second one, and as many pairs as the first makes.
    operand = widened(self)
    if self.ndim > 2:
        operand = operand.reshape(-1, size) if self.size else jnp.zeros((count, 0), operand.dtype)
    first, second = (places[: count * (count - 1) // 2] for places in _pairs(operand))
    return magnitude_norm(jnp.abs(operand[first] - operand[second]), float(p), (1,))


@lowers(aten._pdist_backward.default)
def pdist_backward(grad: jax.Array, self: jax.Array, p: float, pdist: jax.Array) -> jax.Array:
    # The square matrix of distances has a row of slopes for each vector; its diagonal has none.
    rows = self.shape[0]
    first, second = _pairs(self)
    grads, distances = (
        jnp.zeros((rows, rows), widened(vector).dtype)
        .at[first, second]
        .set(widened(vector))
        .at[second, first]
        .set(widened(vector))
        for vector in (grad, pdist)
    )
    return cdist_backward(grads, self, self, p, distances)
