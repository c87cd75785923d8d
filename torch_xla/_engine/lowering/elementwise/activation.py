"""Activation functions; their gradients are in `activation_backward.py`, softmax is in `softmax.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.opmath import bound_as, in_opmath, is_complex, number_as
from ..machinery.registry import Promotion, lowers
from . import complex_functions
from .arithmetic import add
from .comparison import at_least, at_most

aten = torch.ops.aten

SQRT_HALF = float(np.sqrt(0.5))
# The tanh approximation of GELU is x · (1 + tanh(u)) / 2 = x · sigmoid(2u), which keeps its digits for negative x.
# Here 2u = scale · (x + cubic · x³).
SIGMOID_SCALE = float(2 * np.sqrt(2 / np.pi))
SIGMOID_CUBIC = 0.044715


@lowers(aten.relu.default)
def relu(self: jax.Array) -> jax.Array:
    return at_least(self, jnp.zeros((), self.dtype))


@lowers(aten._add_relu.Tensor, aten._add_relu.Scalar, promotion=Promotion.COMMON)
def add_relu(self: jax.Array, other: jax.Array | float, alpha: jax.Array | float = 1) -> jax.Array:
    return relu(add(self, other, alpha))


@lowers(aten.hardtanh.default)
def hardtanh(self: jax.Array, min_val: jax.Array | float = -1, max_val: jax.Array | float = 1) -> jax.Array:
    return at_most(at_least(self, bound_as(min_val, self.dtype)), bound_as(max_val, self.dtype))


@lowers(aten.threshold.default)
@in_opmath
def threshold(self: jax.Array, threshold: jax.Array | float, value: jax.Array | float) -> jax.Array:
    return jnp.where(self <= number_as(threshold, self.dtype), number_as(value, self.dtype), self)


@lowers(aten.gelu.default)
@in_opmath
def gelu(self: jax.Array, *, approximate: str = "none") -> jax.Array:
    if approximate == "tanh":
        return self * lax.logistic(SIGMOID_SCALE * (self + SIGMOID_CUBIC * self * self * self))
    return self * (0.5 * (1 + lax.erf(self * SQRT_HALF)))


@lowers(aten.silu.default)
@in_opmath
def silu(self: jax.Array) -> jax.Array:
    return complex_functions.silu(self) if is_complex(self) else self * lax.logistic(self)


def tanh_of_softplus(self: jax.Array) -> jax.Array:
    """Compute tanh(log(1 + exp(x))) with one exponential: (e² + 2e) / (e² + 2e + 2) for e = exp(x); from 20 on it is
    1.
    """
    power = lax.exp(jnp.minimum(self, 20))
    numerator = power * (power + 2)
    return numerator / (numerator + 2)


@lowers(aten.mish.default)
@in_opmath
def mish(self: jax.Array) -> jax.Array:
    return self * tanh_of_softplus(self)


@lowers(aten.elu.default)
@in_opmath
def elu(
    self: jax.Array, alpha: jax.Array | float = 1, scale: jax.Array | float = 1, input_scale: jax.Array | float = 1
) -> jax.Array:
    return jnp.where(self < 0, lax.expm1(self * input_scale) * (alpha * scale), self * scale)


@lowers(aten.celu.default)
@in_opmath
def celu(self: jax.Array, alpha: jax.Array | float = 1.0) -> jax.Array:
    return elu(self, alpha, 1, 1 / alpha)


@lowers(aten.leaky_relu.default)
@in_opmath
def leaky_relu(self: jax.Array, negative_slope: jax.Array | float = 0.01) -> jax.Array:
    return jnp.where(self > 0, self, self * negative_slope)


@lowers(aten._prelu_kernel.default, promotion=Promotion.COMMON)
@in_opmath
def prelu_kernel(self: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.where(self > 0, self, weight * self)


@lowers(aten.hardswish.default)
@in_opmath
def hardswish(self: jax.Array) -> jax.Array:
    return self * jnp.clip(self + 3, 0, 6) / 6


@lowers(aten.hardsigmoid.default)
@in_opmath
def hardsigmoid(self: jax.Array) -> jax.Array:
    return jnp.clip(self + 3, 0, 6) / 6


@lowers(aten.softplus.default)
@in_opmath
def softplus(self: jax.Array, beta: jax.Array | float = 1, threshold: jax.Array | float = 20) -> jax.Array:
    scaled = self * beta
    return jnp.where(scaled > threshold, self, lax.log1p(lax.exp(scaled)) / beta)


@lowers(aten.softshrink.default)
@in_opmath
def softshrink(self: jax.Array, lambd: jax.Array | float = 0.5) -> jax.Array:
    # The last 0 is a product, so that NaN stays NaN.
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, self * 0))


@lowers(aten.hardshrink.default)
@in_opmath
def hardshrink(self: jax.Array, lambd: jax.Array | float = 0.5) -> jax.Array:
    return jnp.where((self >= -lambd) & (self <= lambd), 0, self)


@lowers(aten.glu.default)
@in_opmath
def glu(self: jax.Array, dim: int = -1) -> jax.Array:
    value, gate = jnp.split(self, 2, axis=dim)
    return value * lax.logistic(gate)


@lowers(aten.log_sigmoid_forward.default)
@in_opmath
def log_sigmoid_forward(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    buffer = lax.exp(-lax.abs(self))
    return jnp.minimum(self, 0) - lax.log1p(buffer), buffer
