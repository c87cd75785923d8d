"""CTC loss: the likelihood of a label sequence, summed over all its alignments in time.

A path visits the labels in order, with blanks between them wherever it likes: these are its states, `2 * labels + 1`.
All samples advance together in one scan over time; steps after the end of a sample are masked.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.jax_sharding import zero_behind_ends
from ..machinery.opmath import widened
from ..machinery.registry import lowers

aten = torch.ops.aten


@lowers(aten._ctc_loss.default)
def ctc_loss(
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Return the loss of each sample, and the log probability of every state at every time."""
    emitted, may_skip, _ = _states(log_probs, targets, target_lengths, blank)
    times, batch, states = emitted.shape
    ends, last = np.asarray(input_lengths), 2 * np.asarray(target_lengths)
    start = np.where(np.arange(states) <= np.minimum(last[:, None], 1), 0, -np.inf).astype(emitted.dtype)
    of_nothing = np.where(last > 0, np.inf, 0).astype(emitted.dtype)
    nothing = jnp.full((batch, 2), -np.inf, emitted.dtype)

    def step(before: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        padded = jnp.concatenate([nothing, before], 1)
        skipped = jnp.where(may_skip, padded[:, :-2], -np.inf)
        after = _log_sum(before, padded[:, 1:-1], skipped) + now
        return after, after

    if times == 0:
        alphas = jnp.zeros((batch, 0, states), emitted.dtype)
        return jnp.asarray(of_nothing), alphas
    first = jnp.asarray(start) + emitted[0]
    _, rest = lax.scan(step, first, emitted[1:])
    alphas = jnp.concatenate([first[None], rest]).transpose(1, 0, 2)
    samples = np.arange(batch)
    final = alphas[samples, np.maximum(ends - 1, 0)]
    at_label = jnp.where(last > 0, final[samples, np.maximum(last - 1, 0)], -np.inf)
    losses = -_log_sum(final[samples, last], at_label)
    return jnp.where(ends == 0, of_nothing, losses), alphas


@lowers(aten._ctc_loss_backward.default)
def ctc_loss_backward(
    grad: jax.Array,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: jax.Array,
    log_alpha: jax.Array,
    blank: int,
    zero_infinity: bool = False,
) -> jax.Array:
    emitted, may_skip, labels = _states(log_probs, targets, target_lengths, blank)
    times, batch, states = emitted.shape
    if 0 in log_probs.shape:
        return jnp.zeros(log_probs.shape, emitted.dtype)
    ends, last = np.asarray(input_lengths), 2 * np.asarray(target_lengths)[:, None]
    state = np.arange(states)
    finish = np.where((state == last) | ((state == last - 1) & (last > 0)), 0, -np.inf).astype(emitted.dtype)
    nothing = jnp.full((batch, 2), -np.inf, emitted.dtype)
    # Whether the next state but one may follow: that state's own permission, two places earlier.
    skips = jnp.pad(may_skip[:, 2:], ((0, 0), (0, 2)))[:, :states]

    def step(after: jax.Array, this: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        time, now = this
        padded = jnp.concatenate([after, nothing], 1)
        skipped = jnp.where(skips, padded[:, 2:], -np.inf)
        inner = _log_sum(after, padded[:, 1:-1], skipped)
        before = jnp.where((time == ends - 1)[:, None], finish, inner) + now
        return before, before

    ended = jnp.full((batch, states), -np.inf, emitted.dtype)
    _, betas = lax.scan(step, ended, (jnp.arange(times, dtype=np.int32), emitted), reverse=True)
    inside = (np.arange(times)[:, None, None] < ends[:, None]) & (state <= last)
    paths = jnp.where(inside, widened(log_alpha).transpose(1, 0, 2) + betas, -np.inf)
    # The share of all paths that pass through a state. Both factors contain the state's emission. The shares are
    # divided by
    # their sum instead of by the loss, a large number that is rounded more coarsely.
    paths = jnp.where(paths == -np.inf, -np.inf, paths - emitted)
    greatest = jnp.maximum(paths.max(2, keepdims=True), jnp.finfo(paths.dtype).min)
    weights = jnp.exp(paths - greatest)
    shares = weights / jnp.maximum(weights.sum(2, keepdims=True), 1)
    losses = widened(neg_log_likelihood)
    samples = np.arange(batch)[:, None]
    visits = jnp.zeros(log_probs.shape, emitted.dtype)
    visits = visits.at[:, samples, labels].add(zero_behind_ends(shares), mode="drop")
    probabilities = widened(log_probs)
    # A class without probability has an undefined gradient, as in PyTorch: there it is minus infinity minus itself.
    slopes = jnp.where(probabilities == -np.inf, np.nan, jnp.exp(probabilities) - visits)
    slopes = jnp.where(losses[:, None] == np.inf, 0 if zero_infinity else np.nan, slopes)
    running = np.arange(times)[:, None, None] < ends[:, None]
    return jnp.where(running, slopes * widened(grad)[:, None], 0)


def _states(
    log_probs: jax.Array, targets: jax.Array, target_lengths: Sequence[int], blank: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the states' log probabilities `[time, sample, state]`, which may be reached past a blank, and their
    labels.
    """
    batch, longest = log_probs.shape[1], max(target_lengths, default=0)
    if targets.ndim == 1:
        offsets = np.cumsum([0, *target_lengths[:-1]])[:batch]
        places = np.minimum(offsets[:, None] + np.arange(longest), max(targets.shape[0] - 1, 0))
        labels = targets[places] if longest else jnp.zeros((batch, 0), targets.dtype)
    else:
        labels = targets[:, :longest]
    blanks = jnp.full((batch, longest + 1), blank, labels.dtype)
    between = jnp.stack([blanks[:, :longest], labels], 2).reshape(batch, 2 * longest)
    states = jnp.concatenate([between, blanks[:, :1]], 1)
    differs = states[:, 2:] != states[:, :-2]
    may_skip = jnp.pad(differs, ((0, 0), (2, 0)))[:, : 2 * longest + 1] & (np.arange(2 * longest + 1) % 2 == 1)
    # Labels behind the end of a target may be no classes at all.
    inside = jnp.clip(states, 0, max(log_probs.shape[2] - 1, 0))
    return jnp.take_along_axis(widened(log_probs), inside[None], 2), may_skip, inside


def _log_sum(*terms: jax.Array) -> jax.Array:
    """Return the logarithm of the sum of exponentials; of nothing but zeros, minus infinity."""
    greatest = terms[0]
    for term in terms[1:]:
        greatest = jnp.maximum(greatest, term)
    offset = jnp.where(greatest == -np.inf, 0, greatest)
    total = jnp.exp(terms[0] - offset)
    for term in terms[1:]:
        total = total + jnp.exp(term - offset)
    return jnp.log(total) + offset
