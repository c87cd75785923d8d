"""Element-wise functions of one operand, and those of two that are not arithmetic."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ... import dtypes
from ...compat.names.torch import OpOverload
from ..machinery.cast import cast
from ..machinery.float8 import is_float8
from ..machinery.opmath import in_opmath, is_complex, is_float, number_as, on_operands, quotient, widened
from ..machinery.promotion import common_dtype
from ..machinery.registry import Promotion, lowers
from . import complex_functions
from .complex_functions import angle_of, by_dtype, magnitude

aten = torch.ops.aten


def _exp2(self: jax.Array) -> jax.Array:
    # A power of 2 is exact for whole exponents; exp(x · log 2), which `lax.exp2` is on a CPU, is not.
    return complex_functions.exp2(self) if is_complex(self) else lax.pow(lax.full_like(self, 2), self)


def _log_to_base(base: float) -> Callable[[jax.Array], jax.Array]:
    def lower(self: jax.Array) -> jax.Array:
        result = lax.log(self) / float(np.log(base))
        # The quotient misses by a rounding for some powers of the base, and floor(log2(8192)) would be 12.
        whole = lax.round(result, lax.RoundingMethod.TO_NEAREST_EVEN)
        return jnp.where(lax.pow(lax.full_like(self, base), whole) == self, whole, result)

    return by_dtype(lower, complex_functions.log_to_base(base))


def _cosh(self: jax.Array) -> jax.Array:
    if is_complex(self):
        return complex_functions.cosh(self)
    # The root of exp(|x|) is squared, as exp(|x|) itself overflows before cosh(x) does.
    root = lax.exp(lax.abs(self) * 0.5)
    return (root * 0.5) * root + (0.5 / root) / root


def _sinh(self: jax.Array) -> jax.Array:
    if is_complex(self):
        return complex_functions.sinh(self)
    magnitude = lax.abs(self)
    root = lax.exp(magnitude * 0.5)
    small = lax.expm1(jnp.minimum(magnitude, 20))
    result = jnp.where(magnitude > 20, (root * 0.5) * root, 0.5 * (small + small / (small + 1)))
    return jnp.copysign(result, self)


def _sinc(self: jax.Array) -> jax.Array:
    zero = self == 0
    angle = jnp.where(zero, 1, self * np.pi)
    if is_complex(self):
        return jnp.where(zero, 1, quotient(complex_functions.sin(angle), angle))
    return jnp.where(zero, 1, lax.sin(angle) / angle)


def log1p(self: jax.Array) -> jax.Array:
    """Return log(1 + x), to two roundings."""
    if is_complex(self):
        return complex_functions.log1p(self)
    if self.dtype != np.float64:
        return lax.log1p(self)
    # XLA's own misses by a hundred roundings on the CPU. What the sum loses, the quotient puts right (W. Kahan).
    # The barrier keeps XLA from taking the change for `self`.
    one_more = lax.optimization_barrier(1 + self)
    change = one_more - 1
    exact = (change == 0) | (self == np.inf)
    return jnp.where(exact, self, lax.log(one_more) * (self / jnp.where(exact, 1, change)))


def _atanh(self: jax.Array) -> jax.Array:
    if is_complex(self):
        return complex_functions.atanh(self)
    if self.dtype != np.float64:
        return lax.atanh(self)
    # XLA's own is off by 14 roundings.
    magnitude = lax.abs(self)
    return jnp.copysign(0.5 * log1p(2 * magnitude / (1 - magnitude)), self)


def _asinh(self: jax.Array) -> jax.Array:
    # XLA takes the sign of a -0 that it knows for that of 0.
    return complex_functions.asinh(self) if is_complex(self) else jnp.copysign(lax.asinh(self), self)


TO_FLOAT: dict[OpOverload, Callable[..., jax.Array]] = {
    aten.acos.default: by_dtype(lax.acos, complex_functions.acos),
    aten.acosh.default: by_dtype(lax.acosh, complex_functions.acosh),
    aten.asin.default: by_dtype(lax.asin, complex_functions.asin),
    aten.asinh.default: _asinh,
    aten.atan.default: by_dtype(lax.atan, complex_functions.atan),
    aten.atanh.default: _atanh,
    aten.cos.default: by_dtype(lax.cos, complex_functions.cos),
    aten.cosh.default: _cosh,
    aten.deg2rad.default: lambda self: self * (np.pi / 180),
    aten.exp.default: by_dtype(lax.exp, complex_functions.exp),
    aten.exp2.default: _exp2,
    aten.expm1.default: by_dtype(lax.expm1, complex_functions.expm1),
    aten.log.default: by_dtype(lax.log, complex_functions.log),
    aten.log10.default: _log_to_base(10),
    aten.log1p.default: log1p,
    aten.log2.default: _log_to_base(2),
    aten.rad2deg.default: lambda self: self * (180 / np.pi),
    aten.reciprocal.default: by_dtype(lambda self: 1 / self, complex_functions.reciprocal),
    aten.rsqrt.default: by_dtype(lax.rsqrt, complex_functions.rsqrt),
    aten.sigmoid.default: by_dtype(lax.logistic, complex_functions.logistic),
    aten.sin.default: by_dtype(lax.sin, complex_functions.sin),
    aten.sinc.default: _sinc,
    aten.sinh.default: _sinh,
    aten.sqrt.default: by_dtype(lax.sqrt, complex_functions.sqrt),
    aten.tan.default: by_dtype(lax.tan, complex_functions.tan),
}
for op, function in TO_FLOAT.items():
    lowers(op, promotion=Promotion.FLOAT)(in_opmath(function))


@lowers(aten.tanh.default, promotion=Promotion.FLOAT)
def tanh(self: jax.Array) -> jax.Array:
    if is_complex(self):
        return complex_functions.tanh(self)
    if self.dtype != np.float32:
        return lax.tanh(widened(self))
    # XLA's own is off by up to five roundings near 1, and its distance from 1 is what the gradient is made of.
    magnitude = lax.abs(self)
    power = lax.exp(-2 * magnitude)
    far = 1 - 2 * power / (1 + power)
    return jnp.where(magnitude < 0.625, lax.tanh(self), jnp.copysign(far, self))


def _of_floats(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Return a rounding: integers are whole already."""
    return lambda self: function(self) if is_float(self) else self


def _nearest(self: jax.Array) -> jax.Array:
    return lax.round(self, lax.RoundingMethod.TO_NEAREST_EVEN)


def _trunc(self: jax.Array) -> jax.Array:
    return jnp.where(self < 0, lax.ceil(self), lax.floor(self))


def _sign(self: jax.Array) -> jax.Array:
    # NaN has the sign 0, unlike `lax.sign`; so has -0, without its sign.
    if is_float(self):
        return jnp.where(self > 0, 1, jnp.where(self < 0, -1, 0)).astype(self.dtype)
    return self if self.dtype == np.bool_ else lax.sign(self)


SAME_DTYPE: dict[OpOverload, Callable[..., jax.Array]] = {
    aten.abs.default: magnitude,
    aten.ceil.default: _of_floats(lax.ceil),
    aten.floor.default: _of_floats(lax.floor),
    aten.frac.default: lambda self: self - _trunc(self),
    aten.neg.default: lax.neg,
    aten.round.default: _of_floats(_nearest),
    aten.sgn.default: by_dtype(_sign, complex_functions.direction),
    aten.sign.default: _sign,
    aten.trunc.default: _of_floats(_trunc),
}
for op, function in SAME_DTYPE.items():
    lowers(op)(function)


@lowers(aten.round.decimals)
@in_opmath
def round_to_decimals(self: jax.Array, *, decimals: int) -> jax.Array:
    power = number_as(10.0 ** abs(decimals), self.dtype)
    return quotient(_nearest(self * power), power) if decimals > 0 else _nearest(quotient(self, power)) * power


@lowers(aten.nan_to_num.default)
def nan_to_num(
    self: jax.Array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> jax.Array:
    if is_complex(self):
        return lax.complex(*(nan_to_num(part, nan, posinf, neginf) for part in (lax.real(self), lax.imag(self))))
    if not is_float(self):
        return self
    largest = jnp.finfo(self.dtype).max
    result = jnp.where(jnp.isnan(self), number_as(0.0 if nan is None else nan, self.dtype), self)
    result = jnp.where(self == np.inf, largest if posinf is None else number_as(posinf, self.dtype), result)
    return jnp.where(self == -np.inf, -largest if neginf is None else number_as(neginf, self.dtype), result)


@lowers(aten.logit.default, promotion=Promotion.FLOAT)
@in_opmath
def logit(self: jax.Array, eps: float | None = None) -> jax.Array:
    # A negative `eps` means none: it clamps only what has no logit anyway.
    inside = self
    if eps is not None:  # the lower bound first, if it is above the other one; one that is NaN bounds nothing
        low = jnp.asarray(eps, self.dtype)
        inside = jnp.where(self < low, low, jnp.where(self > 1 - low, 1 - low, self))
    return lax.log(inside / (1 - inside))


@lowers(aten.logit_backward.default, promotion=Promotion.FLOAT)
@in_opmath
def logit_backward(grad_output: jax.Array, self: jax.Array, eps: float | None = None) -> jax.Array:
    low = 0 if eps is None else jnp.maximum(eps, 0)
    # Outside of [0, 1] there is no logit; what `eps` clamps has no slope.
    outside = np.nan if eps is None else jnp.where(jnp.asarray(eps) < 0, np.nan, 0)
    gradient = grad_output / (self * (1 - self))
    return jnp.where((self < low) | (self > 1 - low), jnp.asarray(outside, self.dtype), gradient)


@lowers(aten.sigmoid_backward.default, promotion=Promotion.COMMON)
@in_opmath
def sigmoid_backward(grad_output: jax.Array, output: jax.Array) -> jax.Array:
    return grad_output * jnp.conj((1 - output) * output)


@lowers(aten.tanh_backward.default, promotion=Promotion.COMMON)
@in_opmath
def tanh_backward(grad_output: jax.Array, output: jax.Array) -> jax.Array:
    return grad_output * jnp.conj(1 - output * output)


@lowers(aten.frexp.Tensor)
def frexp(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    # Zero, infinities and NaN have the exponent 0 and are their own mantissa.
    # In float64 the subnormal numbers of narrower floats are normal, which XLA:CPU computes with.
    mantissa, exponent = jnp.frexp(self.astype(np.float64))
    ordinary = jnp.isfinite(self) & (self != 0)
    return jnp.where(ordinary, mantissa.astype(self.dtype), self), jnp.where(ordinary, exponent, 0)


@lowers(aten.where.self)
def where(condition: jax.Array, self: Any, other: Any) -> jax.Array:
    if self.dtype != other.dtype and (is_float8(self.dtype) or is_float8(other.dtype)):
        # JAX promotes no floats of eight bits.
        dtype = common_dtype([(dtypes.to_torch(each.dtype), each.ndim) for each in (self, other)], [])
        self, other = (cast(each, dtypes.to_jax(dtype)) for each in (self, other))
    return jnp.where(condition if condition.dtype == np.bool_ else condition != 0, self, other)


def _heaviside(self: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.where(self == 0, values, (self > 0).astype(self.dtype))


def _gcd(self: jax.Array, other: jax.Array) -> jax.Array:
    self, other = jnp.broadcast_arrays(self, other)

    # Euclid's algorithm on signed numbers, as the least of a dtype has no absolute value.
    def unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(state[1] != 0)

    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        number, divisor = state
        done = divisor == 0
        remainder = lax.rem(number, jnp.where(done, 1, divisor))
        return jnp.where(done, number, divisor), jnp.where(done, 0, remainder)

    number, _ = lax.while_loop(unfinished, step, (self, other))
    return jnp.abs(number)


def _lcm(self: jax.Array, other: jax.Array) -> jax.Array:
    if self.dtype.itemsize < 4:
        # As C does: only the result is brought back into the range of the dtype.
        self, other = self.astype(np.int32), other.astype(np.int32)
    divisor = _gcd(self, other)
    return jnp.abs(jnp.where(divisor == 0, 0, self // jnp.where(divisor == 0, 1, divisor) * other))


def _nextafter(self: jax.Array, other: jax.Array) -> jax.Array:
    """Return the float beside `self` in the direction of `other`, from their places in the order of floats.

    XLA's own takes subnormal numbers for zero on the CPU.
    """
    whole = np.dtype(f"int{self.dtype.itemsize * 8}")
    least = np.iinfo(whole).min

    def mirrored(bits: jax.Array) -> jax.Array:
        return jnp.where(bits < 0, least - bits, bits)

    here, there = (mirrored(lax.bitcast_convert_type(each, whole)) for each in (self, other))
    beside = mirrored(here + (there > here).astype(whole) - (there < here).astype(whole))
    # The numbers below zero end with -0.
    bits = jnp.where((beside == 0) & (here < 0), least, beside)
    result = jnp.where(here == there, other, lax.bitcast_convert_type(bits, self.dtype))
    return jnp.where((self != self) | (other != other), np.nan, result)


COMMON: dict[OpOverload, Callable[..., jax.Array]] = {
    aten.gcd.default: _gcd,
    aten.heaviside.default: _heaviside,
    aten.lcm.default: _lcm,
    aten.nextafter.default: _nextafter,
}
for op, function in COMMON.items():
    lowers(op, promotion=Promotion.COMMON)(function)


def _hypot(self: jax.Array, other: jax.Array) -> jax.Array:
    # An infinite side makes the other one irrelevant, even if it is NaN.
    infinite = jnp.isinf(self) | jnp.isinf(other)
    sides = jnp.broadcast_arrays(self, other)
    if self.dtype == np.float64:
        return jnp.where(infinite, np.inf, lax.platform_dependent(*sides, tpu=scaled_hypot, default=_complex_abs))
    return jnp.where(infinite, np.inf, _complex_abs(*sides))


def _complex_abs(self: jax.Array, other: jax.Array) -> jax.Array:
    return lax.abs(lax.complex(self, other))


def scaled_hypot(self: jax.Array, other: jax.Array) -> jax.Array:
    """Return the root of the sum of two squares without overflow. A TPU has no complex128."""
    greater, lesser = jnp.maximum(jnp.abs(self), jnp.abs(other)), jnp.minimum(jnp.abs(self), jnp.abs(other))
    ratio = jnp.where(greater == 0, 0, lesser / jnp.where(greater == 0, 1, greater))
    return greater * lax.sqrt(1 + ratio * ratio)


def _log_of_sum(self: jax.Array, other: jax.Array) -> jax.Array:
    first = lax.real(self) >= lax.real(other) if is_complex(self) else (self >= other) | jnp.isnan(self)
    greater, lesser = jnp.where(first, self, other), jnp.where(first, other, self)
    # Equal infinities have no difference.
    return greater + log1p(lax.exp(jnp.where(self == other, 0, lesser - greater)))


def _log2_of_sum(self: jax.Array, other: jax.Array) -> jax.Array:
    greater, lesser = jnp.maximum(self, other), jnp.minimum(self, other)
    difference = jnp.where(self == other, 0, lesser - greater)
    return greater + log1p(_exp2(difference)) * float(1 / np.log(2.0))


def _xlogy(self: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.where((self == 0) & ~jnp.isnan(other), 0, self * lax.log(other))


TWO_TO_FLOAT: dict[tuple[OpOverload, ...], Callable[..., jax.Array]] = {
    (aten.atan2.default,): angle_of,
    (aten.copysign.Tensor, aten.copysign.Scalar): jnp.copysign,
    (aten.hypot.default,): _hypot,
    (aten.logaddexp.default,): _log_of_sum,
    (aten.logaddexp2.default,): _log2_of_sum,
    (aten.xlogy.Tensor, aten.xlogy.Scalar_Other, aten.xlogy.Scalar_Self): _xlogy,
}
for ops, function in TWO_TO_FLOAT.items():
    lowers(*ops, promotion=Promotion.FLOAT)(on_operands(function))


def _scaled(self: jax.Array, exponent: jax.Array) -> jax.Array:
    """Multiply a float by powers of 2 of whole exponents.

    XLA:CPU flushes subnormal numbers, which float64 holds as others.
    """
    if widened(self).dtype != np.float32:
        return _scaled_in_steps(self, exponent)
    return lax.platform_dependent(  # type: ignore[no-any-return]
        self, exponent, cpu=_scaled_in_float64, default=_scaled_in_steps
    )


def _scaled_in_float64(self: jax.Array, exponent: jax.Array) -> jax.Array:
    most = 300  # the least float32 becomes infinite by 2^277, the greatest 0 by 2^-278
    power = _exp2(jnp.clip(exponent.astype(np.int64), -most, most).astype(np.float64))
    return (self.astype(np.float64) * power).astype(np.float32)


def _scaled_in_steps(self: jax.Array, exponent: jax.Array) -> jax.Array:
    """Multiply in three steps: the power itself may be infinite or 0."""
    result = widened(self)
    most = 126 if result.dtype == np.float32 else 1022
    rest = jnp.clip(exponent.astype(np.int64), -3 * most, 3 * most)
    for _ in range(3):
        step = jnp.clip(rest, -most, most)
        result, rest = lax.optimization_barrier(result * _exp2(step.astype(result.dtype))), rest - step
    return result


@lowers(aten.ldexp.Tensor)
def ldexp(self: jax.Array, other: jax.Array) -> jax.Array:
    is_whole = not (is_float(other) or is_complex(other))
    if is_whole and is_float(self):
        return _scaled(self, other)
    if is_whole:  # PyTorch scales other numbers by a power that is a float32: 2^200 is infinite
        return widened(self) * _exp2(other.astype(np.float32))
    power = _exp2(widened(other))
    # The power has the dtype of its exponent, unless neither has dimensions and the other number is wider.
    is_narrow = other.dtype.itemsize < 4 and not is_complex(self)
    if is_narrow and (other.ndim or not is_float(self) or self.dtype == other.dtype):
        power = lax.reduce_precision(power, jnp.finfo(other.dtype).nexp, jnp.finfo(other.dtype).nmant)
    return widened(self) * power
