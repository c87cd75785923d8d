"""Reductions over some or all dimensions: sums, products, extrema, truth values and variances.

Narrow floats are reduced in float32, integers are summed in int64, as in PyTorch.
"""

from collections.abc import Callable, Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ... import dtypes
from ..elementwise.complex_functions import times_real
from ..machinery.cast import cast
from ..machinery.dims import all_or_listed, dimensioned, one_dim
from ..machinery.jax_sharding import whole_along
from ..machinery.opmath import is_complex, is_float, quotient, widened
from ..machinery.registry import Promotion, lowers

aten = torch.ops.aten


def summable(operand: jax.Array, dtype: torch.dtype | None) -> jax.Array:
    """Return `operand` in the dtype that PyTorch sums it up in."""
    if dtype is not None:
        operand = cast(operand, dtypes.to_jax(dtype))
    elif not (is_float(operand) or is_complex(operand)):
        operand = operand.astype(np.int64)
    return widened(operand)


def sum_from_first(terms: jax.Array, dims: Sequence[int]) -> jax.Array:
    """Return a sum that starts with its first term and not with 0, as some of PyTorch's kernels: one of -0 is -0."""
    # JAX takes `lax.add` from -0 for a sum from 0.
    return lax.reduce(terms, np.asarray(-0.0, terms.dtype), lambda left, right: left + right, dims)


@lowers(aten.sum.default, aten.sum.dim_IntList)
def sum_of(
    self: jax.Array, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    operand = summable(self, dtype)
    return jnp.sum(operand, all_or_listed(dim, self.ndim), operand.dtype, keepdims=keepdim)


@lowers(aten.nansum.default)
def nansum(
    self: jax.Array, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    return sum_of(jnp.where(self != self, jnp.zeros_like(self), self), dim, keepdim, dtype=dtype)


@lowers(aten.mean.default, aten.mean.dim)
def mean(
    self: jax.Array, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    operand = summable(self, dtype)
    dims = all_or_listed(dim, self.ndim)
    total, count = jnp.sum(operand, dims, operand.dtype, keepdims=keepdim), prod(self.shape[d] for d in dims)
    return quotient(total, count) if is_complex(operand) else total / count


@lowers(aten.prod.default, aten.prod.dim_int)
def product(
    self: jax.Array, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    operand = summable(self, dtype)
    dims = all_or_listed(None if dim is None else [dim], self.ndim)
    if is_complex(operand) and all(self.shape[d] == 1 for d in dims):
        operand = times_real(operand, 1)  # the factor that each product starts with
    return jnp.prod(operand, dims, operand.dtype, keepdims=keepdim)


@lowers(aten.trace.default)
def trace(self: jax.Array) -> jax.Array:
    operand = summable(self, None)
    return jnp.sum(jnp.diagonal(operand), dtype=operand.dtype)


@lowers(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(self: jax.Array, dim: int | Sequence[int] | None = None) -> jax.Array:
    dims = all_or_listed([dim] if isinstance(dim, int) else dim, self.ndim)
    return jnp.sum(self != 0, dims, np.int64)


def _extremum(reduce: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Reduce some or all dimensions to the smallest or largest element; a NaN wins."""

    def rule(self: jax.Array, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> jax.Array:
        return reduce(self, all_or_listed([dim] if isinstance(dim, int) else dim, self.ndim), keepdims=keepdim)

    return rule


def _index(search: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return the index of the first extremum, or of the first NaN: of all elements where no dimension is given."""

    def rule(self: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        operand = self.reshape(-1) if dim is None else dimensioned(self)
        if operand.dtype == np.bool_:
            operand = operand.astype(np.uint8)
        axis = 0 if dim is None else one_dim(dim, self.ndim)
        index = search(operand, axis, np.int64)
        if self.ndim == 0:
            return index.reshape(())
        if not keepdim:
            return index
        return index.reshape((1,) * self.ndim) if dim is None else jnp.expand_dims(index, axis)

    return rule


_max, _min = _extremum(jnp.max), _extremum(jnp.min)
_argmax, _argmin = _index(lax.argmax), _index(lax.argmin)

for _op, _rule in {
    aten.amax.default: _max,
    aten.amin.default: _min,
    aten.max.default: _max,
    aten.min.default: _min,
    aten.argmax.default: _argmax,
    aten.argmin.default: _argmin,
}.items():
    lowers(_op)(_rule)


def _extremum_along(search: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Return the first extremum and its index: of zeros of both signs the first one, too."""

    def rule(self: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
        places = search(self, dim, keepdim=True)
        if self.ndim == 0:
            return self, places
        values = jnp.take_along_axis(self, places, one_dim(dim, self.ndim), mode="promise_in_bounds")
        return (values, places) if keepdim else (jnp.squeeze(values, dim), jnp.squeeze(places, dim))

    return rule


lowers(aten.max.dim)(_extremum_along(_argmax))
lowers(aten.min.dim)(_extremum_along(_argmin))


@lowers(aten.aminmax.default, aten._aminmax.default, aten._aminmax.dim)
def aminmax(self: jax.Array, dim: int | None = None, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    return _min(self, dim, keepdim), _max(self, dim, keepdim)


def _truth(reduce: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def rule(self: jax.Array, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> jax.Array:
        # Unlike sums, an empty list of dimensions reduces none.
        listed = [dim] if isinstance(dim, int) else dim
        dims = () if listed == [] else all_or_listed(listed, self.ndim)
        return reduce(self != 0, dims, keepdims=keepdim)

    return rule


lowers(aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default)(_truth(jnp.any))
lowers(aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default)(_truth(jnp.all))


@lowers(aten.logsumexp.default, promotion=Promotion.FLOAT)
def logsumexp(self: jax.Array, dim: Sequence[int], keepdim: bool = False) -> jax.Array:
    dims = all_or_listed(dim, self.ndim)
    operand = widened(self)
    if not prod(self.shape[d] for d in dims):
        return jnp.log(jnp.sum(operand, dims, operand.dtype, keepdims=keepdim))
    # An infinite maximum stays in the exponent, where it gives what it should; inf - inf would not.
    largest = jnp.max(operand.real, dims, keepdims=True)
    largest = jnp.where(jnp.isinf(largest), jnp.zeros_like(largest), largest)
    result = jnp.log(jnp.sum(jnp.exp(operand - largest), dims, operand.dtype, keepdims=True)) + largest
    return result if keepdim else lax.squeeze(result, dims)


@lowers(aten.var_mean.correction)
def var_mean(
    self: jax.Array,
    dim: Sequence[int] | None = None,
    *,
    correction: jax.Array | float | None = None,
    keepdim: bool = False,
) -> tuple[jax.Array, jax.Array]:
    dims = all_or_listed(dim, self.ndim)
    operand = widened(self)
    count = prod(self.shape[d] for d in dims)
    center = jnp.sum(operand, dims, operand.dtype, keepdims=True) / count
    deviation = operand - center
    parts = (deviation.real, deviation.imag) if is_complex(operand) else (deviation,)
    # A count that the correction uses up is zero, not negative: the variance becomes infinite, or NaN.
    divisor = jnp.maximum(count - (1 if correction is None else correction), 0.0).astype(parts[0].dtype)
    variances = [jnp.sum(lax.square(part), dims, part.dtype, keepdims=keepdim) / divisor for part in parts]
    return sum(variances[1:], variances[0]), center if keepdim else lax.squeeze(center, dims)


@lowers(aten.std_mean.correction)
def std_mean(
    self: jax.Array, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    variance, center = var_mean(self, dim, correction=correction, keepdim=keepdim)
    return jnp.sqrt(variance), center


@lowers(aten.var.correction)
def var(
    self: jax.Array,
    dim: Sequence[int] | None = None,
    *,
    correction: jax.Array | float | None = None,
    keepdim: bool = False,
) -> jax.Array:
    return var_mean(self, dim, correction=correction, keepdim=keepdim)[0]


@lowers(aten.std.correction)
def std(
    self: jax.Array, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> jax.Array:
    return jnp.sqrt(var(self, dim, correction=correction, keepdim=keepdim))


@lowers(aten.hash_tensor.default)
def hash_tensor(self: jax.Array, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> jax.Array:
    # Mode 0, the only one: the exclusive or of all elements' bits, floats as doubles.
    bits = lax.bitcast_convert_type(self.astype(np.float64), np.uint64) if is_float(self) else self.astype(np.uint64)
    dims = all_or_listed(dim, self.ndim)
    # The devices of a mesh exchange no exclusive ors.
    result = lax.reduce_xor(whole_along(bits, dims), dims)
    return jnp.expand_dims(result, dims) if keepdim else result
