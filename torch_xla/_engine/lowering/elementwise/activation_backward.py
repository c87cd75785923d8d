"""Gradients of the activation functions."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.opmath import in_opmath, number_as
from ..machinery.registry import Promotion, lowers
from .activation import SIGMOID_CUBIC, SIGMOID_SCALE, SQRT_HALF, tanh_of_softplus

aten = torch.ops.aten


@lowers(aten.threshold_backward.default, promotion=Promotion.COMMON)
def threshold_backward(grad_output: jax.Array, self: jax.Array, threshold: object) -> jax.Array:
    return jnp.where(self <= number_as(threshold, self.dtype), jnp.zeros((), grad_output.dtype), grad_output)


@lowers(aten.hardtanh_backward.default, promotion=Promotion.COMMON)
@in_opmath
def hardtanh_backward(
    grad_output: jax.Array, self: jax.Array, min_val: jax.Array | float, max_val: jax.Array | float
) -> jax.Array:
    # Nothing is within a limit that is NaN.
    return jnp.where(
        (self <= min_val) | (self >= max_val) | (min_val != min_val) | (max_val != max_val), 0, grad_output
    )


@lowers(aten.gelu_backward.default, promotion=Promotion.COMMON)
@in_opmath
def gelu_backward(grad_output: jax.Array, self: jax.Array, *, approximate: str = "none") -> jax.Array:
    if approximate == "tanh":
        square = self * self
        sigmoid = lax.logistic(SIGMOID_SCALE * (self + SIGMOID_CUBIC * square * self))
        slope = SIGMOID_SCALE * (1 + 3 * SIGMOID_CUBIC * square)
        return grad_output * (sigmoid + self * sigmoid * (1 - sigmoid) * slope)
    distribution = 0.5 * (1 + lax.erf(self * SQRT_HALF))
    density = lax.exp(-0.5 * self * self) * float(1 / np.sqrt(2 * np.pi))
    return grad_output * (distribution + self * density)


@lowers(aten.silu_backward.default, promotion=Promotion.COMMON)
@in_opmath
def silu_backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
    sigmoid = lax.logistic(self)
    return grad_output * jnp.conj(sigmoid * (1 + self * (1 - sigmoid)))


@lowers(aten.mish_backward.default, promotion=Promotion.COMMON)
@in_opmath
def mish_backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
    # 1 - tanh², without taking a number near 1 from 1: in powers of exp(-x) above zero and of exp(x) below.
    power = lax.exp(-lax.abs(self))
    above = power * (1 + power) / (1 + 2 * power * (1 + power))
    below = (1 + power) / (2 + power * (2 + power))
    slope = 4 * lax.square(jnp.where(self > 0, above, below))
    return grad_output * (tanh_of_softplus(self) + self * lax.logistic(self) * slope)


@lowers(aten.elu_backward.default, promotion=Promotion.COMMON)
@in_opmath
def elu_backward(
    grad_output: jax.Array,
    alpha: jax.Array | float,
    scale: jax.Array | float,
    input_scale: jax.Array | float,
    is_result: bool,
    self_or_result: jax.Array,
) -> jax.Array:
    factor = alpha * scale
    if is_result:
        negative = self_or_result + factor
    else:
        negative = lax.exp(self_or_result * input_scale) * factor
    return grad_output * jnp.where(self_or_result <= 0, negative * input_scale, scale)


@lowers(aten.leaky_relu_backward.default, promotion=Promotion.COMMON)
@in_opmath
def leaky_relu_backward(
    grad_output: jax.Array, self: jax.Array, negative_slope: jax.Array | float, self_is_result: bool
) -> jax.Array:
    # The result has the sign of the argument, so `self_is_result` makes no difference.
    return jnp.where(self > 0, grad_output, grad_output * negative_slope)


@lowers(aten._prelu_kernel_backward.default, promotion=Promotion.COMMON)
@in_opmath
def prelu_kernel_backward(grad_output: jax.Array, self: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    positive = self > 0
    return jnp.where(positive, grad_output, weight * grad_output), jnp.where(positive, 0, self * grad_output)


@lowers(aten.hardswish_backward.default, promotion=Promotion.COMMON)
@in_opmath
def hardswish_backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
    return jnp.where(self <= -3, 0, jnp.where(self < 3, grad_output * (self / 3 + 0.5), grad_output))


@lowers(aten.hardsigmoid_backward.default, promotion=Promotion.COMMON)
@in_opmath
def hardsigmoid_backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
    return jnp.where((self > -3) & (self < 3), grad_output * (1 / 6), 0)


@lowers(aten.softplus_backward.default, promotion=Promotion.COMMON)
@in_opmath
def softplus_backward(
    grad_output: jax.Array, self: jax.Array, beta: jax.Array | float, threshold: jax.Array | float
) -> jax.Array:
    scaled = self * beta
    return jnp.where(scaled > threshold, grad_output, grad_output * lax.logistic(scaled))


@lowers(aten.softshrink_backward.default, aten.hardshrink_backward.default, promotion=Promotion.COMMON)
@in_opmath
def shrink_backward(grad_output: jax.Array, self: jax.Array, lambd: jax.Array | float) -> jax.Array:
    return jnp.where((self >= -lambd) & (self <= lambd), 0, grad_output)


@lowers(aten.glu_backward.default, promotion=Promotion.COMMON)
@in_opmath
def glu_backward(grad_output: jax.Array, self: jax.Array, dim: int) -> jax.Array:
    value, gate = jnp.split(self, 2, axis=dim)
    sigmoid = lax.logistic(gate)
    grad_value = grad_output * sigmoid
    return jnp.concatenate([grad_value, grad_value * (1 - sigmoid) * value], axis=dim)


@lowers(aten.log_sigmoid_backward.default, promotion=Promotion.COMMON)
@in_opmath
def log_sigmoid_backward(grad_output: jax.Array, self: jax.Array, buffer: jax.Array) -> jax.Array:
    # The `buffer` of the forward pass is not needed: the slope is sigmoid(-x).
    return grad_output * lax.logistic(-self)
