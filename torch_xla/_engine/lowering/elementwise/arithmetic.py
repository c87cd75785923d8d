"""Sums, products, quotients, remainders and powers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ... import dtypes
from ..machinery.opmath import (
    is_complex,
    is_float,
    is_integer,
    is_number,
    number_as,
    on_operands,
    product,
    quotient,
    same_dtype,
    widened,
)
from ..machinery.promotion import float_dtype
from ..machinery.registry import Promotion, lowers
from . import complex_functions
from .complex_functions import by_dtype, scaled, times_real

aten = torch.ops.aten


def _factors(self: Any, other: Any) -> list[jax.Array]:
    """Return the operands of a product or quotient: beside a narrow float, all digits of a number count, in float32.

    Two arrays stay as they are, as a single operation on narrow floats is rounded the same by way of float32.
    """
    if is_number(self) or is_number(other):
        return same_dtype(widened(self), widened(other))
    return [self, other]


def _summands(self: Any, other: Any, alpha: Any) -> list[jax.Array]:
    """Return the operands of a sum: numbers are rounded to a narrow float first, as PyTorch does here and not there.
    A complex operand is multiplied by 1 or -1, too, as on the CPU.
    """
    if isinstance(alpha, int) and abs(alpha) == 1:
        self, other = same_dtype(self, other)
        if is_complex(other):
            return [self, times_real(other, alpha)]
        if alpha == 1:
            return [self, other]
    self, other, alpha = map(widened, same_dtype(self, other, alpha))
    return [self, product(other, alpha)]


@lowers(aten.add.Tensor, aten.add.Scalar, promotion=Promotion.COMMON)
def add(self: Any, other: Any, alpha: Any = 1) -> jax.Array:
    self, other = _summands(self, other, alpha)
    return self + other


@lowers(aten.sub.Tensor, aten.sub.Scalar, promotion=Promotion.COMMON)
def sub(self: Any, other: Any, alpha: jax.Array | complex = 1) -> jax.Array:
    if any(not is_number(each) and is_complex(each) for each in (self, other)):
        return add(self, other, -alpha)
    self, other = _summands(self, other, alpha)
    return self - other


@lowers(aten.rsub.Tensor, aten.rsub.Scalar, promotion=Promotion.COMMON)
def rsub(self: jax.Array | complex, other: jax.Array | complex, alpha: jax.Array | complex = 1) -> jax.Array:
    return sub(other, self, alpha)


@lowers(aten.mul.Tensor, aten.mul.Scalar, promotion=Promotion.COMMON)
def mul(self: jax.Array | complex, other: jax.Array | complex) -> jax.Array:
    return product(*_factors(self, other))


@lowers(aten.div.Tensor, aten.div.Scalar, promotion=Promotion.FLOAT)
def div(self: Any, other: Any) -> jax.Array:
    self, other = _factors(self, other)
    return quotient(self, other)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode, promotion=Promotion.COMMON)
def div_rounded(self: jax.Array | complex, other: jax.Array | complex, *, rounding_mode: str | None) -> jax.Array:
    if rounding_mode == "floor":
        return floor_divide(self, other)
    if rounding_mode == "trunc":
        return _divide_toward_zero(self, other)
    self, other = _factors(self, other)
    dtype = dtypes.to_jax(float_dtype(dtypes.to_torch(self.dtype)))
    return quotient(self.astype(dtype), other.astype(dtype))


def _divide_toward_zero(self: jax.Array | complex, other: Any) -> jax.Array:
    dividend, divisor = same_dtype(widened(self), widened(other))
    if not is_float(dividend):
        return lax.div(*jnp.broadcast_arrays(dividend, divisor))
    exact = quotient(dividend, divisor)
    if not is_number(other) and other.dtype != exact.dtype:
        # Of two tensors, PyTorch rounds the quotient to the narrow dtype before it cuts off the fraction.
        exact = lax.reduce_precision(exact, jnp.finfo(other.dtype).nexp, jnp.finfo(other.dtype).nmant)
    return jnp.where(exact < 0, lax.ceil(exact), lax.floor(exact))


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar, promotion=Promotion.COMMON)
def floor_divide(self: jax.Array | complex, other: jax.Array | complex) -> jax.Array:
    if is_number(self) and isinstance(other, jax.Array):
        self = number_as(self, other.dtype)  # a number as the divisor alone keeps all digits beside halves
    self, other = same_dtype(widened(self), widened(other))
    if not is_float(self):
        return jnp.floor_divide(self, other)
    # As Python's `//`, from the exact remainder: floor(a / b) is wrong where a / b rounds up to a whole number.
    remainder = jnp.fmod(self, other)
    near = (self - remainder) / other
    near = jnp.where((remainder != 0) & ((remainder < 0) != (other < 0)), near - 1, near)
    whole = lax.floor(near)
    whole = jnp.where(near - whole > 0.5, whole + 1, whole)
    signed_zero = jnp.copysign(jnp.zeros_like(near), self / other)
    return jnp.where(other == 0, self / other, jnp.where(near == 0, signed_zero, whole))


@lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor, promotion=Promotion.COMMON)
@on_operands
def remainder(self: jax.Array, other: jax.Array) -> jax.Array:
    """Compute the remainder that has the divisor's sign."""
    return jnp.remainder(self, other)


@lowers(aten.fmod.Tensor, aten.fmod.Scalar, promotion=Promotion.COMMON)
@on_operands
def fmod(self: jax.Array, other: jax.Array) -> jax.Array:
    """Compute the remainder that has the dividend's sign."""
    return jnp.fmod(self, other)


def _inverse(self: jax.Array) -> jax.Array:
    return 1 / self


# The powers for which PyTorch does not call pow(): at infinities and zeros some of them differ from it.
_EXACT_POWERS: dict[complex, Callable[[jax.Array], jax.Array]] = {
    0: jnp.ones_like,
    1: lambda self: self,
    2: lambda self: self * self,
    3: lambda self: self * self * self,
    0.5: by_dtype(lax.sqrt, complex_functions.sqrt),
    -0.5: by_dtype(lax.rsqrt, complex_functions.rsqrt),
    -1: by_dtype(_inverse, complex_functions.reciprocal),
    -2: lambda self: _EXACT_POWERS[-1](self * self),
}


@lowers(aten.pow.Tensor_Scalar, promotion=Promotion.COMMON)
def pow_to_number(self: jax.Array, exponent: Any) -> jax.Array:
    if self.dtype == jnp.bool_:
        return self | ~number_as(exponent, self.dtype)
    if jax.export.is_symbolic_dim(exponent):
        return pow_to_array(self, exponent)
    if is_integer(self):
        is_array = isinstance(exponent, jax.Array)
        return pow_to_array(self, exponent) if is_array else lax.integer_pow(self, exponent)
    # The roots of float16 are the ones that PyTorch leaves to pow().
    exact = {n: power for n, power in _EXACT_POWERS.items() if self.dtype != np.float16 or abs(n) != 0.5}
    if not isinstance(exponent, jax.Array):
        return exact[exponent](widened(self)) if exponent in exact else pow_to_array(self, exponent)
    result: jax.Array = pow_to_array(self, exponent)
    for number, power in exact.items():
        result = jnp.where(exponent == number, power(widened(self)), result)
    return result


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar, promotion=Promotion.COMMON)
@on_operands
def pow_to_array(self: jax.Array, exponent: jax.Array) -> jax.Array:
    self, exponent = jnp.broadcast_arrays(self, exponent)
    if is_integer(self):
        return _whole_power(self, exponent)
    return complex_functions.power(self, exponent) if is_complex(self) else lax.pow(self, exponent)


def _whole_power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """Raise to a power by squaring, modulo the range of the dtype; a negative power is 0, unless the base is 1 or
    -1.
    """

    def unfinished(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(state[2] > 0)

    def square(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        power, factor, rest = state
        return jnp.where(rest & 1 == 1, power * factor, power), factor * factor, rest >> 1

    power, _, _ = lax.while_loop(unfinished, square, (jnp.ones_like(base), base, jnp.maximum(exponent, 0)))
    if not jnp.issubdtype(base.dtype, jnp.signedinteger):
        return power
    inverse = jnp.where(base == 1, 1, jnp.where(base == -1, 1 - 2 * (exponent & 1), 0))
    return jnp.where(exponent < 0, inverse, power)


@lowers(aten.addcmul.default, promotion=Promotion.COMMON)
def addcmul(self: jax.Array, tensor1: jax.Array, tensor2: jax.Array, *, value: jax.Array | complex = 1) -> jax.Array:
    self, tensor1, tensor2 = widened(self), widened(tensor1), widened(tensor2)
    return self + scaled(tensor1, value) * tensor2


@lowers(aten.addcdiv.default, promotion=Promotion.COMMON)
def addcdiv(self: jax.Array, tensor1: jax.Array, tensor2: jax.Array, *, value: jax.Array | complex = 1) -> jax.Array:
    self, tensor1, tensor2 = widened(self), widened(tensor1), widened(tensor2)
    dividend = scaled(tensor1, value)
    return self + (quotient(dividend, tensor2) if is_complex(self) else dividend / tensor2)


@lowers(aten.lerp.Tensor, aten.lerp.Scalar, promotion=Promotion.COMMON)
def lerp(self: jax.Array, end: jax.Array, weight: jax.Array | complex) -> jax.Array:
    self, end, weight = same_dtype(widened(self), widened(end), widened(weight))
    # From the nearer end, so that a weight of 1 gives `end` exactly.
    difference = end - self
    return jnp.where(jnp.abs(weight) < 0.5, self + weight * difference, end - difference * (1 - weight))
