"""Functions of complex numbers, also where a part is infinite, NaN or -0: there they have the values of the C standard
(annex G), as PyTorch's on the CPU.

XLA's functions are for finite numbers. They also take -0 for 0, and so the wrong side of a branch cut. The function of
an exchanged argument, b + ia for a + ib, is the exchanged sine for the hyperbolic sine, and so on: each rule for
infinities is written once.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..machinery.opmath import FLOAT64, is_complex, number_as, quotient

LOG_2 = float(np.log(2.0))

Function = Callable[[jax.Array], jax.Array]
Parts = tuple[jax.Array, jax.Array]


def by_dtype(real: Function, of_complex: Function) -> Function:
    """Return a function that is `of_complex` of complex numbers and `real` of others."""
    return lambda self: of_complex(self) if is_complex(self) else real(self)


def _parts(self: jax.Array) -> Parts:
    return lax.real(self), lax.imag(self)


def _exchanged(self: jax.Array) -> jax.Array:
    real, imag = _parts(self)
    return lax.complex(imag, real)


def _of_exchanged(function: Function) -> Function:
    """Return sin for sinh, tan for tanh, asin for asinh and atan for atanh."""
    return lambda self: _exchanged(function(_exchanged(self)))


def _is_open(part: jax.Array) -> jax.Array:
    """Return whether a part is infinite or NaN: as an angle it has no direction."""
    return ~jnp.isfinite(part)


def times_real(self: jax.Array, factor: jax.Array | float) -> jax.Array:
    """Return the product with `factor` + 0i, in which infinity in one part makes NaN of the other.

    XLA leaves out a factor of 1 + 0i.
    """
    real, imag = _parts(self)
    return lax.complex(real * factor - imag * 0, imag * factor + real * 0)


def scaled(self: jax.Array, number: jax.Array | complex) -> jax.Array:
    """Return the product with a number, of complex numbers by parts if it is real."""
    if is_complex(self) and not (isinstance(number, complex) or jnp.iscomplexobj(number)):
        return times_real(self, number)
    return number_as(number, self.dtype) * self


def angle_of(imag: jax.Array, real: jax.Array) -> jax.Array:
    """Return atan2(imag, real), with the sign of `imag` and without NaN if XLA:CPU takes subnormal parts for 0."""
    imag, real = jnp.broadcast_arrays(imag, real)
    angle = lax.atan2(imag, real)
    at_zero = jnp.where(jnp.signbit(real), np.pi, 0).astype(angle.dtype)
    is_lost = (angle != angle) & (imag == imag) & (real == real)
    return jnp.copysign(jnp.where(is_lost, at_zero, angle), imag)


def magnitude(self: jax.Array) -> jax.Array:
    """Return the absolute value; of complex64 the nearest to the truth: gradients ask whose equals a norm in
    float64.
    """
    if not is_complex(self):
        return jnp.abs(self)
    real, imag = _parts(self)
    if self.dtype == np.complex64:
        wide = real.astype(FLOAT64), imag.astype(FLOAT64)
        result = lax.sqrt(wide[0] * wide[0] + wide[1] * wide[1]).astype(real.dtype)
    else:
        result = lax.abs(self)
    return jnp.where(jnp.isinf(real) | jnp.isinf(imag), np.inf, result)


def direction(self: jax.Array) -> jax.Array:
    """Return the number divided by its absolute value; 0 for any zero."""
    real, imag = _parts(self)
    size = magnitude(self)
    is_zero = size == 0
    return lax.complex(*(jnp.where(is_zero, 0, part / jnp.where(is_zero, 1, size)) for part in (real, imag)))


def log(self: jax.Array) -> jax.Array:
    """Return the logarithm."""
    real, imag = _parts(self)
    size = jnp.where(jnp.isinf(real) | jnp.isinf(imag), np.inf, lax.real(lax.log(self)))
    return lax.complex(size, angle_of(imag, real))


def log_to_base(base: float) -> Function:
    """Return the logarithm to a base, by parts: a quotient of complex numbers makes NaN of the infinite one of 0."""
    scale = float(np.log(base))

    def lower(self: jax.Array) -> jax.Array:
        real, imag = _parts(log(self))
        return lax.complex(real / scale, imag / scale)

    return lower


def log1p(self: jax.Array) -> jax.Array:
    """Return log(1 + z)."""
    real, imag = _parts(self)
    # The sum is exact from -2 to -1/2, where XLA's own squares what may underflow.
    size = jnp.where(real < -0.5, lax.real(lax.log(lax.complex(real + 1, imag))), lax.real(lax.log1p(self)))
    size = jnp.where((real == 0) & (imag == 0), real, size)
    return lax.complex(size, angle_of(imag, real + 1))


def sqrt(self: jax.Array) -> jax.Array:
    """Return the square root whose real part is not negative."""
    real, imag = _parts(self)
    root, other = _parts(lax.sqrt(self))
    is_nan = imag != imag
    root = jnp.where(jnp.isinf(imag) | (is_nan & (real == np.inf)), np.inf, root)
    other = jnp.where(jnp.isinf(imag) | (is_nan & (real == -np.inf)), np.inf, other)
    return lax.complex(root, jnp.copysign(other, imag))


def rsqrt(self: jax.Array) -> jax.Array:
    """Return 1 / sqrt(z)."""
    return quotient(jnp.ones_like(self), sqrt(self))


def reciprocal(self: jax.Array) -> jax.Array:
    """Return 1 / z."""
    return quotient(jnp.ones_like(self), self)


def exp(self: jax.Array) -> jax.Array:
    """Return e to the power of z."""
    size, angle = _parts(self)
    real, imag = _parts(lax.exp(self))
    vanishes, grows = ((size == limit) & _is_open(angle) for limit in (-np.inf, np.inf))
    real = jnp.where(vanishes, 0, jnp.where(grows, np.inf, real))
    imag = jnp.where(vanishes, jnp.copysign(np.zeros((), angle.dtype), angle), jnp.where(grows, np.nan, imag))
    return lax.complex(real, jnp.where(angle == 0, angle, imag))


def exp2(self: jax.Array) -> jax.Array:
    """Return 2 to the power of z."""
    real, imag = _parts(self)
    return exp(lax.complex(real * LOG_2, imag * LOG_2))


def expm1(self: jax.Array) -> jax.Array:
    """Return exp(z) - 1."""
    real, imag = _parts(self)
    half = lax.sin(imag / 2)
    return lax.complex(lax.expm1(real) * lax.cos(imag) - 2 * half * half, lax.exp(real) * lax.sin(imag))


def logistic(self: jax.Array) -> jax.Array:
    """Return 1 / (1 + exp(-z))."""
    return reciprocal(1 + exp(-self))


def silu(self: jax.Array) -> jax.Array:
    """Return z / (1 + exp(-z))."""
    return quotient(self, 1 + exp(-self))


def power(self: jax.Array, exponent: jax.Array) -> jax.Array:
    """Return z to the power of another number."""
    return exp(_product(exponent, log(self)))


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    """Multiply, and return infinity where an operand is infinite in one part and the product would be NaN in both."""
    product = left * right
    is_lost = (lax.real(product) != lax.real(product)) & (lax.imag(product) != lax.imag(product))
    is_infinite = [jnp.isinf(lax.real(each)) | jnp.isinf(lax.imag(each)) for each in (left, right)]
    # Infinite numbers count by their directions alone, and NaN beside infinity as 0.
    (a, b), (c, d) = (
        [
            jnp.where(
                infinite, jnp.copysign(jnp.isinf(part).astype(part.dtype), part), jnp.where(part != part, 0, part)
            )
            for part in _parts(each)
        ]
        for each, infinite in zip((left, right), is_infinite, strict=True)
    )
    recovered = lax.complex(np.inf * (a * c - b * d), np.inf * (a * d + b * c))
    return jnp.where(is_lost & (is_infinite[0] | is_infinite[1]), recovered, product)


def _cosh_times(self: jax.Array, factor: jax.Array) -> jax.Array:
    # The root of exp(|x|) is squared, as exp(|x|) itself overflows before the product does.
    root = lax.exp(lax.abs(self) * 0.5)
    return (root * (0.5 * factor)) * root + (0.5 / root) / root * factor


def _sinh_times(self: jax.Array, factor: jax.Array) -> jax.Array:
    absolute = lax.abs(self)
    root = lax.exp(absolute * 0.5)
    small = lax.expm1(jnp.minimum(absolute, 20))
    result = jnp.where(absolute > 20, (root * (0.5 * factor)) * root, 0.5 * (small + small / (small + 1)) * factor)
    return jnp.where(jnp.signbit(self), -result, result)


def sinh(self: jax.Array) -> jax.Array:
    """Return the hyperbolic sine."""
    size, angle = _parts(self)
    real = _sinh_times(size, lax.cos(angle))
    at_limits = jnp.where(size == 0, size, jnp.where(jnp.isinf(size), np.inf, real))
    imag = jnp.where(angle == 0, angle, _cosh_times(size, lax.sin(angle)))
    return lax.complex(jnp.where(_is_open(angle), at_limits, real), imag)


def cosh(self: jax.Array) -> jax.Array:
    """Return the hyperbolic cosine."""
    size, angle = _parts(self)
    is_open = _is_open(angle)
    real = jnp.where(is_open & jnp.isinf(size), np.inf, _cosh_times(size, lax.cos(angle)))
    imag = jnp.where(is_open & (size == 0), 0, _sinh_times(size, lax.sin(angle)))
    return lax.complex(real, jnp.where(angle == 0, jnp.where((size <= 0) & jnp.signbit(size), -angle, angle), imag))


def cos(self: jax.Array) -> jax.Array:
    """Return the cosine."""
    real, imag = _parts(self)
    return cosh(lax.complex(-imag, real))


def tanh(self: jax.Array) -> jax.Array:
    """Return the hyperbolic tangent."""
    size, angle = _parts(self)
    real, imag = _parts(lax.tanh(self))
    is_open, is_infinite = _is_open(angle), jnp.isinf(size)
    # Far from zero the imaginary part is a zero with the sign of sin(2b), or of b where that has none.
    turn = jnp.where(is_open | (lax.abs(angle) <= 1), angle, lax.sin(angle) * lax.cos(angle))
    imag = jnp.where(is_infinite, jnp.copysign(np.zeros((), angle.dtype), turn), imag)
    real = jnp.where(is_infinite, jnp.copysign(np.ones((), size.dtype), size), real)
    return lax.complex(jnp.where(size == 0, size, real), jnp.where((angle == 0) & ~is_infinite, angle, imag))


def asinh(self: jax.Array) -> jax.Array:
    """Return the inverse hyperbolic sine."""
    real, imag = _parts(self)
    result = _parts(lax.asinh(self))
    undefined = _has_nan_alone(real, imag)
    return lax.complex(
        jnp.copysign(jnp.where(undefined, np.nan, result[0]), real),
        jnp.where(undefined, jnp.where(imag == 0, imag, np.nan), result[1]),
    )


def _has_nan_alone(real: jax.Array, imag: jax.Array) -> jax.Array:
    """Return whether a part is NaN and none infinite."""
    return ((real != real) | (imag != imag)) & ~jnp.isinf(real) & ~jnp.isinf(imag)


def acos(self: jax.Array) -> jax.Array:
    """Return the inverse cosine."""
    real, imag = _parts(self)
    angle, size = _parts(lax.acos(self))
    undefined = _has_nan_alone(real, imag)
    angle = jnp.where(undefined, jnp.where(real == 0, np.pi / 2, np.nan), angle)
    size = jnp.copysign(jnp.where(undefined, np.nan, size), -imag)
    if self.dtype == np.complex128:  # there PyTorch subtracts the inverse sine from a quarter turn
        size = jnp.where(size == 0, 0, size)
    return lax.complex(angle, size)


def acosh(self: jax.Array) -> jax.Array:
    """Return the inverse hyperbolic cosine."""
    real, imag = _parts(self)
    size, angle = _parts(lax.acosh(self))
    undefined = _has_nan_alone(real, imag)
    angle = jnp.where(undefined, jnp.where(real == 0, np.pi / 2, np.nan), angle)
    return lax.complex(jnp.where(undefined, np.nan, size), jnp.copysign(angle, imag))


def atanh(self: jax.Array) -> jax.Array:
    """Return the inverse hyperbolic tangent."""
    real, imag = _parts(self)
    size, angle = _parts(lax.atanh(self))
    # Beside a pole the square of the distance underflows.
    distance = lax.abs(imag)
    is_beside = (lax.abs(real) == 1) & (distance < jnp.finfo(imag.dtype).eps)
    size = jnp.where(is_beside, 0.5 * (LOG_2 - lax.log(distance)), size)
    is_limit = jnp.isinf(imag) | ((imag != imag) & ((real == 0) | jnp.isinf(real)))
    size = jnp.where(is_limit, 0, jnp.where((real != real) | (imag != imag), np.nan, size))
    angle = jnp.where(
        (imag != imag) | ((real != real) & ~jnp.isinf(imag)), np.nan, jnp.where(is_limit, np.pi / 2, angle)
    )
    return lax.complex(jnp.copysign(size, real), jnp.copysign(angle, imag))


sin, tan, asin, atan = map(_of_exchanged, (sinh, tanh, asinh, atanh))
