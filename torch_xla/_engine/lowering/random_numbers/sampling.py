"""Random numbers whose distribution varies by element: by rejection, inversion, or a race.

Counts and gammas are computed in float64, as PyTorch does: their logarithms nearly cancel.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..indexing.search import insertion_points
from ..machinery.opmath import is_float, widened
from ..machinery.registry import lowers
from .random import as_argument, exponential_numbers, inner_uniform_numbers, normal_numbers

aten = torch.ops.aten

FLOAT64 = np.dtype(np.float64)

# Below this mean a count is found by walking up from 0, above it by rejection.
WALKS_BELOW = 10.0
# No count with such a mean is farther from 0 than this, to the precision of float64.
LONGEST_WALK = 100


def _rejected(
    key: jax.Array,
    shape: tuple[int, ...],
    needed: jax.Array,
    propose: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
) -> jax.Array:
    """Return proposals of `propose(key)`, drawn again where `needed` and not yet accepted."""

    def waiting(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(~state[2])

    def draw(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        key, values, done = state
        key, used = jax.random.split(key)
        proposed, accepted = propose(used)
        return key, jnp.where(done, values, proposed), done | accepted

    return lax.while_loop(waiting, draw, (key, jnp.zeros(shape, FLOAT64), ~needed))[1]


def _two_uniforms(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    numbers = inner_uniform_numbers(key, (2, *shape), FLOAT64)
    return numbers[0] - 0.5, numbers[1]


def _log_factorial(k: jax.Array) -> jax.Array:
    return lax.lgamma(k + 1)


@lowers(aten.poisson.default, random=True)
def poisson(self: jax.Array, *, key: jax.Array) -> jax.Array:
    rate = as_argument(self, key)
    walk_key, rejection_key = jax.random.split(key)
    large = rate >= WALKS_BELOW
    return jnp.where(
        large,
        _poisson_by_rejection(rejection_key, jnp.where(large, rate, WALKS_BELOW), large),
        _poisson_by_walking(walk_key, jnp.where(large, 0.0, rate)),
    )


def _poisson_by_walking(key: jax.Array, rate: jax.Array) -> jax.Array:
    target = inner_uniform_numbers(key, rate.shape, FLOAT64)

    def short(state: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> jax.Array:
        step, _, _, cumulative = state
        return jnp.any(target > cumulative) & (step < LONGEST_WALK)

    def walk(
        state: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        step, count, probability, cumulative = state
        step = step + 1
        count = jnp.where(target > cumulative, step, count)
        probability = probability * rate / step
        return step, count, probability, cumulative + probability

    start = jnp.exp(-rate)
    return lax.while_loop(short, walk, (jnp.zeros((), FLOAT64), jnp.zeros_like(rate), start, start))[1]


def _poisson_by_rejection(key: jax.Array, rate: jax.Array, needed: jax.Array) -> jax.Array:
    # Transformed rejection with a squeeze: W. Hörmann, "The transformed rejection method for generating Poisson random
    # variables" (1993), algorithm PTRS.
    spread = 0.931 + 2.53 * jnp.sqrt(rate)
    slope = -0.059 + 0.02483 * spread
    height = 1.1239 + 1.1328 / (spread - 3.4)
    squeeze = 0.9277 - 3.6224 / (spread - 2)
    log_rate = jnp.log(rate)

    def propose(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        u, v = _two_uniforms(key, rate.shape)
        distance = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * slope / distance + spread) * u + rate + 0.43)
        inside = (k >= 0) & ((distance >= 0.013) | (v <= distance))
        density = k * log_rate - rate - _log_factorial(jnp.maximum(k, 0))
        below = jnp.log(v * height / (slope / (distance * distance) + spread)) <= density
        return k, ((distance >= 0.07) & (v <= squeeze)) | (inside & below)

    return _rejected(key, rate.shape, needed, propose)


@lowers(aten.binomial.default, random=True)
def binomial(count: jax.Array, prob: jax.Array, *, key: jax.Array) -> jax.Array:
    dtype = count.dtype
    count, prob = jnp.broadcast_arrays(as_argument(count, key), as_argument(prob, key))
    # The rarer of the two outcomes is counted.
    rare = jnp.minimum(prob, 1 - prob)
    possible = (count > 0) & (rare > 0)
    large = possible & (count * rare >= WALKS_BELOW)
    small = possible & ~large
    walk_key, rejection_key = jax.random.split(key)
    hits = jnp.where(
        large,
        _binomial_by_rejection(rejection_key, jnp.where(large, count, 100.0), jnp.where(large, rare, 0.25), large),
        _binomial_by_jumping(walk_key, jnp.where(small, count, 0.0), jnp.where(small, rare, 0.25)),
    )
    hits = jnp.where(prob > 0.5, jnp.maximum(count, 0) - hits, hits)
    return jnp.where(jnp.isnan(prob) | jnp.isnan(count), jnp.nan, hits).astype(dtype)


def _binomial_by_jumping(key: jax.Array, count: jax.Array, prob: jax.Array) -> jax.Array:
    # From hit to hit: the number of trials to the next one is geometric.
    per_trial = -jnp.log1p(-prob)

    def running(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(state[1] < count)

    def jump(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        key, trials, hits = state
        key, used = jax.random.split(key)
        trials = trials + jnp.ceil(exponential_numbers(used, count.shape, FLOAT64) / per_trial)
        return key, trials, jnp.where(trials <= count, hits + 1, hits)

    return lax.while_loop(running, jump, (key, jnp.zeros_like(count), jnp.zeros_like(count)))[2]


def _binomial_by_rejection(key: jax.Array, count: jax.Array, prob: jax.Array, needed: jax.Array) -> jax.Array:
    # W. Hörmann, "The generation of binomial random variates" (1993), algorithm BTRS.
    deviation = jnp.sqrt(count * prob * (1 - prob))
    spread = 1.15 + 2.53 * deviation
    slope = -0.0873 + 0.0248 * spread + 0.01 * prob
    height = (2.83 + 5.1 / spread) * deviation
    squeeze = 0.92 - 4.2 / spread
    log_odds = jnp.log(prob / (1 - prob))
    mode = jnp.floor((count + 1) * prob)
    at_mode = _log_factorial(mode) + _log_factorial(count - mode)

    def propose(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        u, v = _two_uniforms(key, count.shape)
        distance = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * slope / distance + spread) * u + count * prob + 0.5)
        inside = (k >= 0) & (k <= count)
        held = jnp.clip(k, 0, count)
        density = at_mode - _log_factorial(held) - _log_factorial(count - held) + (held - mode) * log_odds
        below = jnp.log(v * height / (slope / (distance * distance) + spread)) <= density
        return k, inside & (((distance >= 0.07) & (v <= squeeze)) | below)

    return _rejected(key, count.shape, needed, propose)


def _gamma(key: jax.Array, shape_parameter: jax.Array) -> jax.Array:
    # G. Marsaglia and W. W. Tsang, "A simple method for generating gamma variables" (2000). A parameter below 1 is
    # raised by 1, and the result multiplied by a power of a uniform number.
    raised = jnp.where(shape_parameter < 1, shape_parameter + 1, shape_parameter)
    centre = raised - 1 / 3
    width = 1 / jnp.sqrt(9 * centre)
    rejection_key, power_key = jax.random.split(key)

    def propose(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        normal_key, uniform_key = jax.random.split(key)
        normal = normal_numbers(normal_key, centre.shape, FLOAT64)
        cube = (1 + width * normal) ** 3
        v = jnp.where(cube > 0, cube, 1.0)
        u = inner_uniform_numbers(uniform_key, centre.shape, FLOAT64)
        accepted = jnp.log(u) < 0.5 * normal * normal + centre * (1 - v + jnp.log(v))
        return centre * v, (cube > 0) & accepted

    # No proposal for infinity would be accepted.
    needed = (shape_parameter > 0) & jnp.isfinite(shape_parameter)
    drawn = _rejected(rejection_key, centre.shape, needed, propose)
    power = inner_uniform_numbers(power_key, centre.shape, FLOAT64) ** (1 / shape_parameter)
    drawn = jnp.where(shape_parameter < 1, drawn * power, drawn)
    return jnp.where(jnp.isposinf(shape_parameter), jnp.inf, drawn)


def _at_least_tiny(values: jax.Array, dtype: np.dtype) -> jax.Array:
    # PyTorch's samples are never 0, so that their logarithms are finite.
    tiny = float(jnp.finfo(dtype).tiny)
    return jnp.where(values > tiny, values, tiny).astype(dtype)


@lowers(aten._standard_gamma.default, random=True)
def standard_gamma(self: jax.Array, *, key: jax.Array) -> jax.Array:
    return _at_least_tiny(_gamma(key, as_argument(self, key)), self.dtype)


@lowers(aten._standard_gamma_grad.default)
def standard_gamma_grad(self: jax.Array, output: jax.Array) -> jax.Array:
    return lax.random_gamma_grad(widened(self), widened(output))


@lowers(aten._sample_dirichlet.default, random=True)
def sample_dirichlet(self: jax.Array, *, key: jax.Array) -> jax.Array:
    gammas = _at_least_tiny(_gamma(key, as_argument(self, key)), FLOAT64)
    return _at_least_tiny(gammas / jnp.sum(gammas, -1, keepdims=True), self.dtype)


@lowers(aten.multinomial.default, random=True)
def multinomial(self: jax.Array, num_samples: int, replacement: bool = False, *, key: jax.Array) -> jax.Array:
    if not is_float(self):
        raise TypeError(f"multinomial takes weights of a floating-point dtype, not {self.dtype}")
    if num_samples <= 0 or self.shape[-1] > 2**24:
        raise ValueError(f"multinomial cannot draw {num_samples} of {self.shape[-1]} categories (2^24 at most)")
    weights = as_argument(self, key, widened(self).dtype)
    if replacement and num_samples > 1:
        totals = jnp.cumsum(weights, -1)
        shape = (*weights.shape[:-1], num_samples)
        targets = inner_uniform_numbers(key, shape, weights.dtype) * totals[..., -1:]
        return insertion_points(totals, targets, right=False)
    # A race: category i arrives after an exponential time with rate `weights[i]`. Those of weight 0 never arrive.
    speeds = weights / exponential_numbers(key, weights.shape, weights.dtype)
    if num_samples == 1:
        return jnp.argmax(speeds, -1, keepdims=True)
    return lax.top_k(speeds, num_samples)[1]
