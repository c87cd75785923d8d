"""Cumulative sums, products, extrema and log-sums along one dimension."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.dims import dimensioned, one_dim
from ..machinery.opmath import is_complex, widened
from ..machinery.registry import lowers
from .reduction import summable

aten = torch.ops.aten


def _accumulated(scan: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def rule(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
        operand, axis = summable(self, dtype), one_dim(dim, self.ndim)
        return scan(operand, axis=axis) if self.ndim else operand  # of one number, itself

    return rule


lowers(aten.cumsum.default)(_accumulated(lax.cumsum))
lowers(aten.cumprod.default)(_accumulated(lax.cumprod))


def _running(scan: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Return the extremum so far, and where it was last met. From the first NaN on it is NaN, last met at the last
    NaN.
    """

    def rule(self: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
        if not self.size:
            return self, jnp.zeros(self.shape, np.int64)
        operand, axis = dimensioned(self), one_dim(dim, self.ndim)
        comparable = operand.astype(np.uint8) if operand.dtype == np.bool_ else operand
        values = scan(comparable, axis=axis)
        position = lax.broadcasted_iota(np.int64, operand.shape, axis)
        met = (comparable == values) | (comparable != comparable)
        indices = lax.cummax(jnp.where(met, position, 0), axis=axis)
        # The elements themselves: of equal ones, which may be zeros of either sign, the last.
        values = jnp.take_along_axis(operand, indices, axis, mode="promise_in_bounds")
        return values.reshape(self.shape), indices.reshape(self.shape)

    return rule


lowers(aten.cummax.default)(_running(lax.cummax))
lowers(aten.cummin.default)(_running(lax.cummin))


@lowers(aten.logcumsumexp.default, aten._logcumsumexp.default)
def logcumsumexp(self: jax.Array, dim: int) -> jax.Array:
    operand, axis = widened(self), one_dim(dim, self.ndim)
    if not self.ndim:
        return operand
    if not is_complex(operand):
        # In float64, as PyTorch's own kernel: the derivative takes logarithms and powers of the result.
        return lax.cumlogsumexp(operand.astype(np.float64), axis=axis)
    operand = operand.astype(np.complex128)
    # Angles are not reduced to one turn, so they depend on the order of the additions: one after the other.
    rows = jnp.moveaxis(operand, axis, 0)
    start = jnp.full(rows.shape[1:], -np.inf, operand.dtype)

    def add(total: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = _log_of_sum(row, total)
        return total, total

    return jnp.moveaxis(lax.scan(add, start, rows)[1], 0, axis)


def _log_of_sum(left: jax.Array, right: jax.Array) -> jax.Array:
    """Return log(exp(left) + exp(right)) of complex numbers, as PyTorch defines it for infinities and NaN too."""
    lower = left.real < right.real
    small, large = jnp.where(lower, left, right), jnp.where(lower, right, left)
    undefined = (left != left) | (right != right)
    equal = jnp.isinf(small.real) & (small.real == large.real)
    result = large + jnp.log1p(jnp.exp(jnp.where(equal, jnp.zeros_like(small), small - large)))
    # Where both are infinite alike: the angle of the sum of +inf, and any angle for a sum of zeros.
    both = jnp.where(small.real < 0, small, jnp.log(jnp.exp(small) + jnp.exp(large)))
    result = jnp.where(equal, both, result)
    return jnp.where(undefined, jnp.asarray(complex(np.nan, np.nan), result.dtype), result)
