"""Special functions; Bessel and Airy functions are in `bessel.py`, orthogonal polynomials in `polynomials.py`.

Most are computed in float64, which costs little beside the function itself: XLA's float32 forms of them lose digits
near their zeros and in their tails, where PyTorch's do not.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.scipy import special as jsp

from ..machinery.opmath import in_double, in_opmath, on_operands, same_dtype, widened
from ..machinery.registry import Promotion, lowers
from .pointwise import log1p

aten = torch.ops.aten

SQRT_HALF = float(np.sqrt(0.5))


def _erfinv(self: jax.Array) -> jax.Array:
    # One step of Newton's method makes up for the digits that XLA's formula lacks in the tails; there it works on
    # 1 - |x|, which is exact, by the complementary function.
    magnitude = lax.abs(self)
    guess = lax.erf_inv(magnitude)
    error = jnp.where(magnitude < 0.5, lax.erf(guess) - magnitude, (1 - magnitude) - lax.erfc(guess))
    better = guess - error * lax.exp(guess * guess) * float(np.sqrt(np.pi) / 2)
    return jnp.copysign(jnp.where(magnitude == 1, np.inf, better), self)


def _digamma(self: jax.Array) -> jax.Array:
    return jnp.where(self == 0, jnp.copysign(np.inf, -self), lax.digamma(self))


# Taylor's series of lgamma(2 + z) from its square on, (-1)^k (zeta(k) - 1) / k: exact where |z| is up to a half.
_LGAMMA = (
    0.3224670334241132, -0.0673523010531981, 0.020580808427784546, -0.007385551028673986, 0.0028905103307415234,
    -0.001192753911703261, 0.0005096695247430425, -0.00022315475845357936, 9.945751278180853e-05,
    -4.492623673813314e-05, 2.0507212775670694e-05, -9.439488275268395e-06, 4.374866789907487e-06,
    -2.039215753801366e-06, 9.55141213040742e-07, -4.492469198764566e-07, 2.1207184805554667e-07,
    -1.00432248239681e-07, 4.769810169363981e-08, -2.2711094608943164e-08, 1.0838659214896955e-08,
    -5.183475041970047e-09, 2.4836745438024785e-09, -1.1921401405860912e-09, 5.731367241678862e-10,
    -2.7595228851242334e-10, 1.3304764374244491e-10, -6.422964563838101e-11, 3.104424774732227e-11,
)  # fmt: skip
_ONE_LESS_EULER = 0.42278433509846713  # the first one


# Stirling's series in 1 / x², whose first term is 1 / 12x: exact from 8 on.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)


def _lgamma(self: jax.Array) -> jax.Array:
    # XLA's formula is off by fifty roundings, and by any number of them where the function is zero.
    mirrored = self < 0.5
    positive = _lgamma_from_a_half(jnp.where(mirrored, 1 - self, self))
    sine = lax.abs(lax.sin(np.pi * (self - lax.round(self, lax.RoundingMethod.TO_NEAREST_EVEN))))
    reflected = jnp.where(self == -np.inf, np.inf, float(np.log(np.pi)) - lax.log(sine) - positive)
    return jnp.where(mirrored, reflected, positive)


def _lgamma_from_a_half(self: jax.Array) -> jax.Array:
    far = jnp.maximum(self, 8)
    series = jnp.polyval(jnp.asarray(_STIRLING[::-1]), 1 / (far * far)) / far
    high = (far - 0.5) * (lax.log(far) - 1) + (float(0.5 * np.log(2 * np.pi)) - 0.5) + series
    # From 1.5 to 2.5 by Taylor's series, above that and below by the recurrence.
    z, product = jnp.clip(self, 0.5, 8), jnp.ones_like(self)
    for _ in range(6):
        z, product = jnp.where(z > 2.5, z - 1, z), jnp.where(z > 2.5, product * (z - 1), product)
    is_first = z < 1.5
    z = jnp.where(is_first, z - 1, z - 2)
    near = z * (_ONE_LESS_EULER + z * jnp.polyval(jnp.asarray(_LGAMMA[::-1]), z))
    near = jnp.where(is_first, near - log1p(z), near + lax.log(product))
    return jnp.where(self < 8, near, high)


# The polynomial in (x - 3.75) / (x + 3.75) that is nearest to (1 + 2x) · erfcx(x) where x ≥ 0, after Shepherd and
# Laframboise (1981); its coefficients by Chebyshev's points in 60 digits. It differs by less than 1e-17.
_ERFCX = (
    1.2375126308378275, -0.14024059858554702, 0.00358541548546365, 0.08227673849015112, -0.10880393014170486,
    0.09230432116019513, -0.058693398590614, 0.028362277421569364, -0.009746579546733069, 0.0017556258319139934,
    0.00029371358771431225, -0.0002901539762990061, 5.164944451696205e-05, 2.238390038090339e-05,
    -1.1445178311518049e-05, -9.728185029677076e-07, 1.7537598965322038e-06, -5.832039466992171e-08,
    -2.616930395796968e-07, 2.4363842659574258e-08, 4.163213221156018e-08, -4.454188309154417e-09,
    -7.094844440843675e-09, 5.826552475656065e-10, 1.2007166392684951e-09, -4.9844152844245993e-11,
    -1.689091555613108e-10, 1.8240025042773818e-12, 1.3644024033145443e-11,
)  # fmt: skip


def _erfcx(self: jax.Array) -> jax.Array:
    magnitude = lax.abs(self)
    near = jnp.minimum(magnitude, 10)
    middle = jnp.polyval(jnp.asarray(_ERFCX[::-1]), (near - 3.75) / (near + 3.75)) / (1 + 2 * near)
    # Near zero its terms cancel each other, and nothing is lost in a product.
    product = lax.exp(magnitude * magnitude) * lax.erfc(magnitude)
    # Laplace's continued fraction, which has converged to float64 from 10 on after 12 terms.
    far = jnp.maximum(magnitude, 10)
    fraction = far
    for term in range(12, 0, -1):
        fraction = far + (term / 2) / fraction
    positive = jnp.where(magnitude < 10, middle, float(1 / np.sqrt(np.pi)) / fraction)
    positive = jnp.where(magnitude < 0.5, product, positive)
    # exp(x²) is split, as the rounding of x² would show in its last digits.
    below = jnp.minimum(magnitude, 30)
    high = lax.reduce_precision(below, 11, 23)
    return jnp.where(self < 0, 2 * lax.exp(high * high) * lax.exp((below - high) * (below + high)) - positive, positive)


def _log_ndtr(self: jax.Array) -> jax.Array:
    far = lax.log(_erfcx(jnp.maximum(-self, 1) * SQRT_HALF) * 0.5) - 0.5 * self * self
    return jnp.where(self < -1, far, lax.log1p(-0.5 * lax.erfc(self * SQRT_HALF)))


def _i0(self: jax.Array) -> jax.Array:
    return lax.exp(lax.abs(self)) * lax.bessel_i0e(self)


def _i1e(self: jax.Array) -> jax.Array:
    # PyTorch gives 0 for both zeros.
    return jnp.where(self == 0, 0, lax.bessel_i1e(self))


def _i1(self: jax.Array) -> jax.Array:
    return lax.exp(lax.abs(self)) * _i1e(self)


def _entr(self: jax.Array) -> jax.Array:
    return jnp.where(self < 0, -np.inf, jnp.where(self == 0, 0, -self * lax.log(self)))


def _erf(self: jax.Array) -> jax.Array:
    if self.dtype != np.float32:
        return lax.erf(widened(self))
    # XLA's own is off by up to five roundings near 1, and the distribution function lives on its distance from 1.
    magnitude = lax.abs(self)
    return jnp.where(magnitude < 1, lax.erf(self), jnp.copysign(1 - lax.erfc(magnitude), self))


ONE = {
    aten.erf.default: _erf,
    aten.erfc.default: in_opmath(lax.erfc),
    aten.erfinv.default: in_double(_erfinv),
    aten.digamma.default: in_double(_digamma),
    aten.i0.default: in_opmath(_i0),
    aten.lgamma.default: in_double(_lgamma),
    aten.special_entr.default: in_opmath(_entr),
    aten.special_erfcx.default: in_double(_erfcx),
    aten.special_i0e.default: in_opmath(lax.bessel_i0e),
    aten.special_i1.default: in_opmath(_i1),
    aten.special_i1e.default: in_opmath(_i1e),
    aten.special_log_ndtr.default: in_double(_log_ndtr),
    aten.special_modified_bessel_i0.default: in_opmath(_i0),
    aten.special_modified_bessel_i1.default: in_opmath(_i1),
    aten.special_ndtri.default: in_double(jsp.ndtri),
}
for op, function in ONE.items():
    lowers(op, promotion=Promotion.FLOAT)(function)


@on_operands
def _xlog1py(self: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.where((self == 0) & ~jnp.isnan(other), 0, self * log1p(other))


lowers(
    aten.special_xlog1py.default,
    aten.special_xlog1py.other_scalar,
    aten.special_xlog1py.self_scalar,
    promotion=Promotion.FLOAT,
)(_xlog1py)


def _sum_of_powers(exponent: jax.Array, first: jax.Array) -> jax.Array:
    """Return XLA's zeta function in float64, of operands that were narrower. A TPU's has the digits of float32: there
    the function in float64 takes a minute to compile.
    """

    def narrow(exponent: jax.Array, first: jax.Array) -> jax.Array:
        return lax.zeta(exponent.astype(np.float32), first.astype(np.float32)).astype(np.float64)

    return lax.platform_dependent(exponent, first, tpu=narrow, default=lax.zeta)


def _zeta_of(*operands: object) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return the zeta function for positive numbers with the digits that such operands have."""
    is_double = any(isinstance(each, jax.Array) and each.dtype == np.float64 for each in operands)
    return lax.zeta if is_double else _sum_of_powers


# PyTorch takes as many steps as it needs to leave the negative numbers.
MOST_STEPS = 1 << 16


@lowers(
    aten.special_zeta.default,
    aten.special_zeta.other_scalar,
    aten.special_zeta.self_scalar,
    promotion=Promotion.FLOAT,
)
def zeta(self: jax.Array | float, other: object) -> jax.Array:
    """Return the sum of (other + k) to the power of -self over all k ≥ 0."""
    return in_double(partial(_zeta, _zeta_of(self, other)))(self, other)


def _zeta(of_positive: Callable[[jax.Array, jax.Array], jax.Array], self: object, other: object) -> jax.Array:
    exponent, first = jnp.broadcast_arrays(*same_dtype(self, other))

    def unfinished(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(state[1] < 0) & (state[0] < MOST_STEPS)

    def step(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        count, base, total = state
        negative = base < 0
        term = jnp.where(negative, lax.pow(base, -exponent), 0)
        return count + 1, jnp.where(negative, base + 1, base), total + term

    # XLA's zeta is for positive numbers; the terms of negative ones are added one by one.
    state = (jnp.zeros((), np.int64), jnp.where(first == -np.inf, np.nan, first), jnp.zeros_like(first))
    _, base, total = lax.while_loop(unfinished, step, state)
    result = jnp.where(base < 0, np.nan, total + of_positive(exponent, base))
    pole = (first <= 0) & (first == lax.floor(first))
    return jnp.where(exponent < 1, np.nan, jnp.where(pole | (exponent == 1), np.inf, result))


def _derivative_of_cotangent(order: int, self: jax.Array) -> jax.Array:
    """Return the derivative of π·cot(π·x): a polynomial in the cotangent c, as each step multiplies by -π·(1 + c²)."""
    polynomial = np.polynomial.Polynomial([0.0, np.pi])
    for _ in range(order):
        polynomial = polynomial.deriv() * np.polynomial.Polynomial([-np.pi, 0.0, -np.pi])
    # The tangent has the period 1, and reckons best near 0.
    angle = (self - lax.round(self, lax.RoundingMethod.TO_NEAREST_EVEN)) * np.pi
    return jnp.polyval(jnp.asarray(polynomial.coef[::-1]), lax.cos(angle) / lax.sin(angle))


@lowers(aten.polygamma.default, promotion=Promotion.FLOAT)
def polygamma(n: int, self: jax.Array) -> jax.Array:
    return in_double(partial(_polygamma, _zeta_of(self)))(n, self)


def _polygamma(of_positive: Callable[[jax.Array, jax.Array], jax.Array], n: int, self: jax.Array) -> jax.Array:
    if n == 0:
        return _digamma(self)
    sign = -1.0 if n % 2 == 0 else 1.0
    factorial = float(np.exp(np.sum(np.log(np.arange(1, n + 1)))))
    mirrored = self <= 0
    positive = sign * factorial * of_positive(jnp.full_like(self, n + 1), jnp.where(mirrored, 1 - self, self))
    if n == 1:  # XLA's sum has no limit; PyTorch returns none for higher derivatives either
        positive = jnp.where(self == np.inf, 0.0, positive)
    reflected = -sign * positive - _derivative_of_cotangent(n, self)
    whole = self == lax.floor(self)
    return jnp.where(mirrored, jnp.where(whole, sign * np.inf, reflected), positive)


@lowers(aten.mvlgamma.default, promotion=Promotion.FLOAT)
@in_double
def mvlgamma(self: jax.Array, p: int) -> jax.Array:
    terms = [_lgamma(self - 0.5 * index) for index in range(p)]
    return sum(terms, start=jnp.asarray(p * (p - 1) / 4 * float(np.log(np.pi)), self.dtype))


def _with_limits(self: jax.Array, other: jax.Array, inside: jax.Array, at_zero: float, at_infinity: float) -> jax.Array:
    """Return an incomplete gamma function of (a, x), right also at zeros and infinities, given its values at x = 0 and
    ∞.
    """
    result = jnp.where(jnp.isinf(other), at_infinity, jnp.where(other == 0, at_zero, inside))
    result = jnp.where(jnp.isinf(self), jnp.where(jnp.isinf(other), np.nan, at_zero), result)
    result = jnp.where(self == 0, jnp.where(other > 0, at_infinity, np.nan), result)
    return jnp.where((self < 0) | (other < 0), np.nan, result)


# XLA adds up 2,000 terms at most: its sum is off by 2e-12 here, by 0.05 at 1e8.
_ASYMPTOTIC_FROM = 2e3
# The first three coefficients of Temme's expansion, as series in eta, from the highest power down.
_TEMME = (
    (1 / 25515, -139 / 777600, 1 / 2835, 1 / 864, -2 / 135, 1 / 12, -1 / 3),
    (1 / 4860, -77 / 77760, 1 / 378, -1 / 288, -1 / 540),
    (1 / 1296, -139 / 51840, 25 / 6048),
)


def _incomplete_gamma(
    series: Callable[[jax.Array, jax.Array], jax.Array], self: jax.Array, other: jax.Array, side: int
) -> jax.Array:
    """Return the `series` of (a, x) where it ends, and the uniform asymptotic expansion for large a.

    `side` is 1 for the upper function, and -1 for the lower one.
    """
    large = (self >= _ASYMPTOTIC_FROM) & jnp.isfinite(self) & jnp.isfinite(other)
    usual = ~large & ~jnp.isinf(self) & ~jnp.isinf(other)
    summed = series(jnp.where(usual, self, 1.0), jnp.where(usual, other, 1.0))
    return jnp.where(large, _asymptotic_gamma(jnp.where(large, self, 1.0), other, side), summed)


def _asymptotic_gamma(a: jax.Array, x: jax.Array, side: int) -> jax.Array:
    # N. M. Temme's expansion, DLMF 8.12.3, 8.12.4 and 8.12.7. What is left out is smaller than the result by a ** -3.
    mu = (x - a) / a
    is_near = jnp.abs(mu) < 0.1
    # mu - log(1 + mu), whose terms cancel near 0; so do those of the coefficients.
    near = mu * mu * jnp.polyval(jnp.asarray([(-1.0) ** k / k for k in range(18, 1, -1)], a.dtype), mu)
    half_square = jnp.where(is_near, near, mu - jnp.log1p(mu))
    eta = jnp.copysign(jnp.sqrt(2 * half_square), mu)
    first, second, third = (jnp.polyval(jnp.asarray(series, a.dtype), eta) for series in _TEMME)
    one, other = 1 / jnp.where(is_near, 1.0, mu), 1 / jnp.where(is_near, 1.0, eta)
    first = jnp.where(is_near, first, one - other)
    second = jnp.where(is_near, second, other**3 - one**3 - one**2 - one / 12)
    rest = jnp.exp(-a * half_square) / jnp.sqrt(2 * np.pi * a) * (first + (second + third / a) / a)
    rest = jnp.where(half_square < 1e3, rest, 0.0)
    return 0.5 * lax.erfc(side * eta * jnp.sqrt(a / 2)) + side * rest


@lowers(aten.igamma.default, promotion=Promotion.FLOAT)
@in_double
def igamma(self: jax.Array, other: jax.Array) -> jax.Array:
    self, other = jnp.broadcast_arrays(self, other)
    return _with_limits(self, other, _incomplete_gamma(lax.igamma, self, other, -1), 0.0, 1.0)


@lowers(aten.igammac.default, promotion=Promotion.FLOAT)
@in_double
def igammac(self: jax.Array, other: jax.Array) -> jax.Array:
    self, other = jnp.broadcast_arrays(self, other)
    return _with_limits(self, other, _incomplete_gamma(lax.igammac, self, other, 1), 1.0, 0.0)
