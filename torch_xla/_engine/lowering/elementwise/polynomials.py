"""Orthogonal polynomials, with tensors of degrees, by their three-term recurrences."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.opmath import same_dtype, widened
from ..machinery.registry import Promotion, lowers

aten = torch.ops.aten

# The polynomial of degree k + 1 at x, from k, x, and those of degree k and k - 1.
Recurrence = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def _chebyshev(k: jax.Array, x: jax.Array, current: jax.Array, previous: jax.Array) -> jax.Array:
    return 2 * x * current - previous


def _hermite_h(k: jax.Array, x: jax.Array, current: jax.Array, previous: jax.Array) -> jax.Array:
    return 2 * (x * current - k * previous)


def _hermite_he(k: jax.Array, x: jax.Array, current: jax.Array, previous: jax.Array) -> jax.Array:
    return x * current - k * previous


def _laguerre(k: jax.Array, x: jax.Array, current: jax.Array, previous: jax.Array) -> jax.Array:
    return ((2 * k + 1 - x) * current - k * previous) / (k + 1)


def _legendre(k: jax.Array, x: jax.Array, current: jax.Array, previous: jax.Array) -> jax.Array:
    return ((2 * k + 1) * x * current - k * previous) / (k + 1)


def _polynomial(
    recurrence: Recurrence, first: Callable[[jax.Array], jax.Array]
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return the rule for the polynomials 1, `first`, ...

    A fraction of a degree is dropped. A degree below 0 gives 0, and so does one that int64 does not hold, as on the
    CPU: the loop would not end.
    """

    def lower(x: object, n: object) -> jax.Array:
        x, n = jnp.broadcast_arrays(*same_dtype(widened(x), widened(n)))
        degree = jnp.where(jnp.abs(n) < 2.0**63, n, -1).astype(np.int64)
        last = jnp.max(degree, initial=0)

        def unfinished(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            return state[0] < last

        def step(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            k, current, previous = state
            following = recurrence(k.astype(x.dtype), x, current, previous)
            # An element that has reached its degree stays.
            reached = k >= degree
            return k + 1, jnp.where(reached, current, following), jnp.where(reached, previous, current)

        one = jnp.ones_like(x)
        _, result, _ = lax.while_loop(unfinished, step, (jnp.ones((), np.int64), first(x), one))
        return jnp.where(degree < 0, 0, jnp.where(degree == 0, one, result))

    return lower


def _shifted(rule: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    def lower(x: jax.Array, n: jax.Array) -> jax.Array:
        x, n = same_dtype(widened(x), widened(n))
        return rule(2 * x - 1, n)

    return lower


_T = _polynomial(_chebyshev, lambda x: x)
_U = _polynomial(_chebyshev, lambda x: 2 * x)
_V = _polynomial(_chebyshev, lambda x: 2 * x - 1)
_W = _polynomial(_chebyshev, lambda x: 2 * x + 1)

POLYNOMIALS = {
    aten.special_chebyshev_polynomial_t: _T,
    aten.special_chebyshev_polynomial_u: _U,
    aten.special_chebyshev_polynomial_v: _V,
    aten.special_chebyshev_polynomial_w: _W,
    aten.special_hermite_polynomial_h: _polynomial(_hermite_h, lambda x: 2 * x),
    aten.special_hermite_polynomial_he: _polynomial(_hermite_he, lambda x: x),
    aten.special_laguerre_polynomial_l: _polynomial(_laguerre, lambda x: 1 - x),
    aten.special_legendre_polynomial_p: _polynomial(_legendre, lambda x: x),
    aten.special_shifted_chebyshev_polynomial_t: _shifted(_T),
    aten.special_shifted_chebyshev_polynomial_u: _shifted(_U),
    aten.special_shifted_chebyshev_polynomial_v: _shifted(_V),
    aten.special_shifted_chebyshev_polynomial_w: _shifted(_W),
}
for packet, rule in POLYNOMIALS.items():
    lowers(packet.default, packet.n_scalar, packet.x_scalar, promotion=Promotion.FLOAT)(rule)
