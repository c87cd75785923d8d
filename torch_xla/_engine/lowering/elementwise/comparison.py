"""Comparisons, extremes of two operands, and tests for infinities and NaN."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ...compat.names.torch import OpOverload
from ..machinery.opmath import bound_as, is_complex, is_float, same_dtype
from ..machinery.registry import Promotion, lowers

aten = torch.ops.aten


def _of_one_dtype(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    # Not widened: PyTorch rounds the number to the dtype of the tensor before it compares.
    return lambda self, other: function(*same_dtype(self, other))


COMMON: dict[tuple[OpOverload, ...], Callable[..., jax.Array]] = {
    (aten.eq.Tensor, aten.eq.Scalar): jnp.equal,
    (aten.ne.Tensor, aten.ne.Scalar): jnp.not_equal,
    (aten.lt.Tensor, aten.lt.Scalar): jnp.less,
    (aten.le.Tensor, aten.le.Scalar): jnp.less_equal,
    (aten.gt.Tensor, aten.gt.Scalar): jnp.greater,
    (aten.ge.Tensor, aten.ge.Scalar): jnp.greater_equal,
    (aten.maximum.default,): jnp.maximum,
    (aten.minimum.default,): jnp.minimum,
    # Of two that are equal the first, which may be a zero of another sign.
    (aten.fmax.default,): lambda self, other: jnp.where((other > self) | (self != self), other, self),
    (aten.fmin.default,): lambda self, other: jnp.where((other < self) | (self != self), other, self),
}
for ops, function in COMMON.items():
    lowers(*ops, promotion=Promotion.COMMON)(_of_one_dtype(function))


@lowers(aten.clamp.default, aten.clamp.Tensor, promotion=Promotion.COMMON)
def clamp(self: jax.Array, min: object = None, max: object = None) -> jax.Array:
    """Clamp each element; `max` wins over a greater `min`, and NaN over all."""
    if min is not None:
        self = at_least(self, bound_as(min, self.dtype))
    return self if max is None else at_most(self, bound_as(max, self.dtype))


def at_least(self: jax.Array, bound: jax.Array) -> jax.Array:
    """Return the greater of each element and `bound`. Of two that are equal the element: it keeps the sign of a
    zero.
    """
    return jnp.where((self < bound) | (bound != bound), bound, self)


def at_most(self: jax.Array, bound: jax.Array) -> jax.Array:
    """Return the lesser of each element and `bound`. Of two that are equal the element: it keeps the sign of a zero."""
    return jnp.where((self > bound) | (bound != bound), bound, self)


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor, promotion=Promotion.COMMON)
def clamp_min(self: jax.Array, min: object) -> jax.Array:
    return clamp(self, min)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor, promotion=Promotion.COMMON)
def clamp_max(self: jax.Array, max: object) -> jax.Array:
    return clamp(self, None, max)


def _of_floats(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Return a test that no integer passes."""
    return lambda self: function(self) if is_float(self) or is_complex(self) else jnp.zeros(self.shape, np.bool_)


def _signbit(self: jax.Array) -> jax.Array:
    return jnp.signbit(self) if is_float(self) else self < jnp.zeros((), self.dtype)


TESTS = {
    aten.isinf.default: _of_floats(jnp.isinf),
    aten.isnan.default: _of_floats(jnp.isnan),
    aten.isneginf.default: _of_floats(lambda self: self == -np.inf),
    aten.isposinf.default: _of_floats(lambda self: self == np.inf),
    aten.signbit.default: _signbit,
}
for op, function in TESTS.items():
    lowers(op)(function)
