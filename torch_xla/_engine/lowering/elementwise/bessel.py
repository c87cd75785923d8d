"""Bessel functions of orders 0 and 1, and Airy's function, computed in float64.

Near 0 a Bessel function is the mean of its generating function over the circle, which a few dozen points give exactly;
its series in other Bessel functions turns into weights of the same points (DLMF 10.8 and 10.31). Far from 0 it is
Hankel's expansion, or a rapidly falling integral (DLMF 10.17 and 10.32).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.opmath import in_double
from ..machinery.registry import Promotion, lowers

aten = torch.ops.aten

# From here on, Hankel's expansion has the precision of float64; the mean over the circle is for smaller arguments.
FAR = 25.0
HANKEL_TERMS = 18
# By symmetry a quarter of the circle, from a whole one of 128 points, is enough up to FAR.
ANGLES = (np.arange(32) + 0.5) * (2 * np.pi / 128)
# The half circle, for functions that are not even; it is enough up to 2.
HALF_ANGLES = (np.arange(32) + 0.5) * (np.pi / 32)
# The weights of the points in the series of Y0 and K0 over Bessel functions of even orders.
ORDERS = np.arange(1, 31)
Y_WEIGHTS = ((-1.0) ** ORDERS / ORDERS) @ np.cos(2 * np.outer(ORDERS, ANGLES))
SMALL_ORDERS = np.arange(1, 13)
K_WEIGHTS = (1.0 / SMALL_ORDERS) @ np.cos(2 * np.outer(SMALL_ORDERS, HALF_ANGLES))
# The trapezoidal rule for integrals that fall like exp(-t²/2) or faster.
ABSCISSAS = np.arange(36) * 0.25
RULE = np.where(ABSCISSAS == 0, 0.125, 0.25)


def _mean(values: jax.Array) -> jax.Array:
    return jnp.mean(values, axis=-1)


def _j0_near(self: jax.Array) -> jax.Array:
    return _mean(lax.cos(self[..., None] * np.sin(ANGLES)))


def _j1_near(self: jax.Array) -> jax.Array:
    return _mean(lax.sin(self[..., None] * np.sin(ANGLES)) * np.sin(ANGLES))


def _logarithm(self: jax.Array) -> jax.Array:
    return lax.log(self * 0.5) + np.euler_gamma


def _y0_near(self: jax.Array) -> jax.Array:
    series = _mean(lax.cos(self[..., None] * np.sin(ANGLES)) * Y_WEIGHTS)
    return (2 / np.pi) * (_logarithm(self) * _j0_near(self) - 2 * series)


def _y1_near(self: jax.Array) -> jax.Array:
    # The derivative of Y0, term by term.
    series = _mean(lax.sin(self[..., None] * np.sin(ANGLES)) * (Y_WEIGHTS * np.sin(ANGLES)))
    return (2 / np.pi) * (_logarithm(self) * _j1_near(self) - _j0_near(self) / self - 2 * series)


def _hankel(order: int, self: jax.Array, phase: float) -> jax.Array:
    """Evaluate Hankel's expansion of the J of this order, or with a phase of -π/2 of its Y."""
    coefficients = [1.0]
    for k in range(1, HANKEL_TERMS):
        coefficients.append(coefficients[-1] * (4 * order * order - (2 * k - 1) ** 2) / (8 * k))
    inverse = 1 / self
    return lax.sqrt(2 / np.pi * inverse) * _wave(coefficients, inverse, self - (order / 2 + 0.25) * np.pi + phase)


def _wave(coefficients: list[float], inverse: jax.Array, angle: jax.Array) -> jax.Array:
    signed = [c * (1, -1, -1, 1)[k % 4] for k, c in enumerate(coefficients)]
    square = inverse * inverse
    even = jnp.polyval(jnp.asarray(signed[::2][::-1]), square)
    odd = inverse * jnp.polyval(jnp.asarray(signed[1::2][::-1]), square)
    return even * lax.cos(angle) + odd * lax.sin(angle)


def _j(order: int, near: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    def lower(self: jax.Array) -> jax.Array:
        magnitude = lax.abs(self)
        far = _hankel(order, jnp.maximum(magnitude, FAR), 0.0)
        result = jnp.where(magnitude < FAR, near(jnp.minimum(magnitude, FAR)), far)
        return jnp.copysign(1.0, self) * result if order % 2 else result

    return lower


def _y(order: int, near: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    def lower(self: jax.Array) -> jax.Array:
        far = _hankel(order, jnp.maximum(self, FAR), -np.pi / 2)
        result = jnp.where(self < FAR, near(jnp.minimum(self, FAR)), far)
        return jnp.where(self == 0, -np.inf, jnp.where(self < 0, np.nan, result))

    return lower


def _k0_near(self: jax.Array) -> jax.Array:
    series = _mean(lax.exp(self[..., None] * np.cos(HALF_ANGLES)) * K_WEIGHTS)
    return 2 * series - _logarithm(self) * lax.exp(self) * lax.bessel_i0e(self)


def _k1_near(self: jax.Array) -> jax.Array:
    # The derivative of K0, term by term.
    series = _mean(lax.exp(self[..., None] * np.cos(HALF_ANGLES)) * (K_WEIGHTS * np.cos(HALF_ANGLES)))
    growth = lax.exp(self)
    return growth * (lax.bessel_i0e(self) / self + _logarithm(self) * lax.bessel_i1e(self)) - 2 * series


def _k_far(order: float, self: jax.Array) -> jax.Array:
    """Return exp(x)·K(x) for x ≥ 1: the integral of exp(-x·(cosh t - 1))·cosh(order·t), with t in units of 1/√x."""
    root = lax.sqrt(self)[..., None]
    t = ABSCISSAS / root
    half = lax.sinh(t * 0.5) * root
    return jnp.sum(lax.exp(-2 * half * half) * lax.cosh(order * t) * RULE, axis=-1) / root[..., 0]


def _scaled_k(order: int, near: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    def lower(self: jax.Array) -> jax.Array:
        low, high = jnp.minimum(self, 2), jnp.clip(self, 2, np.finfo(np.float64).max)
        result = jnp.where(self < 2, near(low) * lax.exp(low), _k_far(order, high))
        return jnp.where(self == 0, np.inf, jnp.where(self < 0, np.nan, jnp.where(self == np.inf, 0, result)))

    return lower


_scaled_k0 = _scaled_k(0, _k0_near)
_scaled_k1 = _scaled_k(1, _k1_near)


# Chebyshev's series of Airy's function on [-9, 2].
AIRY = [
    0.05311143487425154,
    0.14914971425838053,
    -0.06435525875649134,
    -0.07906778162873936,
    -0.1287686512045592,
    0.015248047703603945,
    0.12099440757455909,
    0.02844288383659205,
    0.007987464871067638,
    -0.17874405564106777,
    0.09384069180573373,
    0.1008657317880825,
    -0.11400008648431051,
    0.008046128277329298,
    0.042486823201465074,
    -0.021726184824498354,
    -0.003567718925638556,
    0.007191053015881422,
    -0.0019202336943310262,
    -0.0008300791345242047,
    0.0006687510717981065,
    -8.070357102442782e-05,
    -8.346491812157731e-05,
    3.908576350619645e-05,
    -2.8973596495451213e-07,
    -5.1079832006385876e-06,
    1.5386154178452136e-06,
    1.5836804781042605e-07,
    -2.1460415740143408e-07,
    4.1980501165649343e-08,
    1.0115647278923651e-08,
    -6.600391225660549e-09,
    7.766231922372822e-10,
    3.7136548518364695e-10,
    -1.5465690848502832e-10,
    8.105207790262008e-12,
    9.698652193119171e-12,
    -2.8326998239889084e-12,
    -2.608513503852366e-14,
    1.9448653070135472e-13,
    -4.116518793663734e-14,
    -3.1034619154756147e-15,
    3.1182892275518942e-15,
    -4.76224048776014e-16,
    -7.519874350242125e-17,
    4.10127216388534e-17,
]


def _airy_middle(self: jax.Array) -> jax.Array:
    # Clenshaw's recurrence.
    t = (2 * self + 7) / 11
    current, previous = jnp.zeros_like(t), jnp.zeros_like(t)
    for coefficient in AIRY[:0:-1]:
        current, previous = 2 * t * current - previous + coefficient, current
    return t * current - previous + AIRY[0]


def _airy(self: jax.Array) -> jax.Array:
    right = jnp.maximum(self, 2)
    zeta = (2 / 3) * right * lax.sqrt(right)
    falling = lax.sqrt(right / 3) / np.pi * lax.exp(-zeta) * _k_far(1 / 3, zeta)
    left = -jnp.minimum(self, -9)
    inverse = 1.5 / (left * lax.sqrt(left))
    coefficients = [1.0]
    for k in range(1, 22):
        coefficients.append(coefficients[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)))
    # The signs of the terms go with an angle that runs backwards from the crest.
    waves = _wave([c * (-1) ** k for k, c in enumerate(coefficients)], inverse, 1 / inverse - np.pi / 4)
    waves = waves / (np.sqrt(np.pi) * lax.sqrt(lax.sqrt(left)))
    result = jnp.where(self > 2, falling, jnp.where(self < -9, waves, _airy_middle(jnp.clip(self, -9, 2))))
    return jnp.where(jnp.isinf(self), np.nan, result)


def _spherical_j0(self: jax.Array) -> jax.Array:
    zero = self == 0
    return jnp.where(jnp.isinf(self), 0, jnp.where(zero, 1, lax.sin(self) / jnp.where(zero, 1, self)))


FUNCTIONS = {
    aten.special_airy_ai.default: _airy,
    aten.special_bessel_j0.default: _j(0, _j0_near),
    aten.special_bessel_j1.default: _j(1, _j1_near),
    aten.special_bessel_y0.default: _y(0, _y0_near),
    aten.special_bessel_y1.default: _y(1, _y1_near),
    aten.special_modified_bessel_k0.default: lambda self: lax.exp(-self) * _scaled_k0(self),
    aten.special_modified_bessel_k1.default: lambda self: lax.exp(-self) * _scaled_k1(self),
    aten.special_scaled_modified_bessel_k0.default: _scaled_k0,
    aten.special_scaled_modified_bessel_k1.default: _scaled_k1,
    aten.special_spherical_bessel_j0.default: _spherical_j0,
}
for op, function in FUNCTIONS.items():
    lowers(op, promotion=Promotion.FLOAT)(in_double(function))
