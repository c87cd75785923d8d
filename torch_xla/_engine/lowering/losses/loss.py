"""Loss functions that are operators of their own, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..elementwise.pointwise import log1p
from ..machinery.opmath import widened
from ..machinery.registry import Promotion, lowers

aten = torch.ops.aten

NONE, MEAN, SUM = range(3)  # PyTorch's numbers for `reduction`


def reduced(losses: jax.Array, reduction: int) -> jax.Array:
    """Return the losses, their mean or their sum, which any other number means as well."""
    if reduction == NONE:
        return losses
    return jnp.mean(losses) if reduction == MEAN else jnp.sum(losses)


def _reduced_if_known(losses: jax.Array, reduction: int) -> jax.Array:
    """Return the losses, their mean or their sum. Here any other number leaves the losses as they are."""
    return reduced(losses, reduction) if reduction in (MEAN, SUM) else losses


def _spread(gradient: jax.Array, like: jax.Array, reduction: int) -> jax.Array:
    """Return the gradient of each single loss."""
    return widened(gradient) / max(like.size, 1) if reduction == MEAN else widened(gradient)


def _class_weights(target: jax.Array, weight: jax.Array | None, ignore_index: int, dtype: np.dtype) -> jax.Array:
    """Return the weight of each target's class; 0 where the target is to be ignored."""
    counted = target != ignore_index
    if weight is None:
        return counted.astype(dtype)
    chosen = jnp.take(widened(weight), jnp.where(counted, target, 0), mode="clip")
    return jnp.where(counted, chosen, jnp.zeros((), chosen.dtype))


def _is_target(target: jax.Array, scores: jax.Array, dim: int) -> jax.Array:
    """Return a mask of the scores that belong to the targets' classes. The classes are in dimension `dim`.

    Classes are counted in 32 bits: a TPU compares 64 in two halves.
    """
    count = scores.shape[dim]
    numbers = jnp.where((target >= 0) & (target < count), target, -1).astype(np.int32)
    return jax.lax.broadcasted_iota(np.int32, scores.shape, dim) == jnp.expand_dims(numbers, dim)


def _picked(scores: jax.Array, target: jax.Array, dim: int) -> jax.Array:
    """Return the score of each target."""

    def by_index(scores: jax.Array, target: jax.Array) -> jax.Array:
        return jnp.squeeze(jnp.take_along_axis(scores, jnp.expand_dims(target, dim), dim, mode="clip"), dim)

    def by_comparison(scores: jax.Array, target: jax.Array) -> jax.Array:
        nearest = jnp.clip(target, 0, scores.shape[dim] - 1)
        return jnp.sum(jnp.where(_is_target(nearest, scores, dim), scores, jnp.zeros((), scores.dtype)), dim)

    # A TPU reads what it indexes from memory, so that all logarithms of a softmax would be written to it for a few.
    return jax.lax.platform_dependent(scores, target, tpu=by_comparison, default=by_index)  # type: ignore[no-any-return]


def _forward(
    self: jax.Array, target: jax.Array, weight: jax.Array | None, reduction: int, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    x, target = widened(self), target.astype(np.int64)
    dim = 0 if x.ndim == 1 else 1
    if x.ndim == 1:
        target = target.reshape(())
    weights = _class_weights(target, weight, ignore_index, x.dtype)
    picked = _picked(x, jnp.where(target == ignore_index, 0, target), dim)
    # Not a product alone: an ignored target's probability may be infinite.
    losses = jnp.where(weights == 0, jnp.zeros((), x.dtype), -picked * weights)
    total = jnp.sum(weights)
    if reduction == NONE:
        # PyTorch fills in the weight of a single target, and leaves it 0 for several.
        return losses, total if x.ndim == 1 else jnp.zeros((), x.dtype)
    return jnp.sum(losses) / total if reduction == MEAN else jnp.sum(losses), total


def _backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    weight: jax.Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: jax.Array,
) -> jax.Array:
    dim = 0 if self.ndim == 1 else 1
    gradient, target = widened(grad_output), target.astype(np.int64)
    if self.ndim == 1:
        gradient, target = gradient.reshape(()), target.reshape(())
    weights = _class_weights(target, weight, ignore_index, gradient.dtype)
    if reduction == MEAN:
        gradient = gradient / widened(total_weight)
    each = jnp.expand_dims(jnp.where(weights == 0, jnp.zeros((), gradient.dtype), -gradient * weights), dim)
    # A comparison with the class numbers fuses with what follows; a scatter would be a loop of its own.
    return jnp.where(_is_target(target, self, dim), each, jnp.zeros((), each.dtype))


lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)(_forward)
lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)(_backward)


@lowers(aten.mse_loss.default, promotion=Promotion.COMMON)
def mse_loss(self: jax.Array, target: jax.Array, reduction: int = MEAN) -> jax.Array:
    return reduced(jnp.square(widened(self) - widened(target)), reduction)


@lowers(aten.mse_loss_backward.default, promotion=Promotion.COMMON)
def mse_loss_backward(grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int) -> jax.Array:
    difference = widened(self) - widened(target)
    return 2 * difference * _spread(grad_output, difference, reduction)


@lowers(aten.smooth_l1_loss.default, promotion=Promotion.COMMON)
def smooth_l1_loss(self: jax.Array, target: jax.Array, reduction: int = MEAN, beta: float = 1.0) -> jax.Array:
    distance = jnp.abs(widened(self) - widened(target))
    return reduced(jnp.where(distance < beta, 0.5 * distance * distance / beta, distance - 0.5 * beta), reduction)


@lowers(aten.smooth_l1_loss_backward.default, promotion=Promotion.COMMON)
def smooth_l1_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int, beta: float
) -> jax.Array:
    difference = widened(self) - widened(target)
    slope = jnp.where(jnp.abs(difference) < beta, difference / beta, jnp.sign(difference))
    return slope * _spread(grad_output, difference, reduction)


@lowers(aten.huber_loss.default, promotion=Promotion.COMMON)
def huber_loss(self: jax.Array, target: jax.Array, reduction: int = MEAN, delta: float = 1.0) -> jax.Array:
    distance = jnp.abs(widened(self) - widened(target))
    losses = jnp.where(distance <= delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta))
    return _reduced_if_known(losses, reduction)


@lowers(aten.huber_loss_backward.default, promotion=Promotion.COMMON)
def huber_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int, delta: float
) -> jax.Array:
    difference = widened(self) - widened(target)
    slope = jnp.clip(difference, -delta, delta)
    return slope * _spread(grad_output, difference, reduction)


@lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    self: jax.Array, target: jax.Array, weight: jax.Array | None = None, reduction: int = MEAN
) -> jax.Array:
    x, y = widened(self), widened(target)
    # PyTorch cuts the logarithms off at -100, so that a sure and wrong answer has a finite loss.
    losses = (y - 1) * jnp.maximum(log1p(-x), -100) - y * jnp.maximum(jnp.log(x), -100)
    return _reduced_if_known(losses if weight is None else losses * widened(weight), reduction)


@lowers(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    weight: jax.Array | None = None,
    reduction: int = MEAN,
) -> jax.Array:
    x, y = widened(self), widened(target)
    slope = (x - y) / jnp.maximum((1 - x) * x, 1e-12)
    slope = slope if weight is None else slope * widened(weight)
    return slope * _spread(grad_output, x, reduction)


@lowers(aten.soft_margin_loss.default, promotion=Promotion.COMMON)
def soft_margin_loss(self: jax.Array, target: jax.Array, reduction: int = MEAN) -> jax.Array:
    losses = jnp.log1p(jnp.exp(-widened(target) * widened(self)))
    if reduction not in (NONE, MEAN, SUM):
        return losses.reshape(-1)[0]  # PyTorch makes one number of their memory
    return reduced(losses, reduction)


@lowers(aten.soft_margin_loss_backward.default, promotion=Promotion.COMMON)
def soft_margin_loss_backward(grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int) -> jax.Array:
    x, y = widened(self), widened(target)
    return -y * jax.nn.sigmoid(-y * x) * _spread(grad_output, x, reduction)


def _hinges(
    self: jax.Array, target: jax.Array, margin: float, weight: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return, for rows of scores, margin - score of the target + each score, the target's mask, and the target's
    weight.
    """
    x = widened(self).reshape(-1, self.shape[-1] if self.ndim else 1)
    index = target.reshape(-1, 1)
    picked = jnp.take_along_axis(x, index, 1, mode="clip")
    is_target = jax.lax.broadcasted_iota(target.dtype, x.shape, 1) == index
    weights = jnp.ones_like(picked) if weight is None else jnp.take(widened(weight), index, mode="clip")
    return margin - picked + x, is_target, weights


@lowers(aten.multi_margin_loss.default)
def multi_margin_loss(
    self: jax.Array,
    target: jax.Array,
    p: int = 1,
    margin: float = 1,
    weight: jax.Array | None = None,
    reduction: int = MEAN,
) -> jax.Array:
    hinges, is_target, weights = _hinges(self, target, margin, weight)
    kept = jnp.where(is_target, jnp.zeros((), hinges.dtype), jnp.maximum(hinges, 0))
    losses = jnp.sum((kept if p == 1 else kept * kept) * weights, 1) / hinges.shape[1]
    return reduced(losses if target.ndim else losses[0], reduction)


@lowers(aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    p: int,
    margin: float,
    weight: jax.Array | None = None,
    reduction: int = MEAN,
) -> jax.Array:
    hinges, is_target, weights = _hinges(self, target, margin, weight)
    slope = jnp.ones_like(hinges) if p == 1 else 2 * hinges
    open_ = (hinges > 0) & ~is_target
    others = jnp.where(open_, slope * weights / hinges.shape[1], jnp.zeros((), hinges.dtype))
    slopes = jnp.where(is_target, -jnp.sum(others, 1, keepdims=True) + 0.0, others)  # taken from a zero, as on the CPU
    gradient = widened(grad_output).reshape(-1, 1) / (slopes.shape[0] if reduction == MEAN else 1)
    return (slopes * gradient).reshape(self.shape)


def _labels(self: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return rows of scores, their labels, which labels count (those before the first -1), and which classes are
    labelled.
    """
    x = widened(self).reshape(-1, self.shape[-1] if self.ndim else 1)
    labels = target.reshape(x.shape)
    counts = jnp.cumsum((labels < 0).astype(np.int32), 1) == 0
    classes = jnp.arange(x.shape[1], dtype=labels.dtype)
    is_target = jnp.any((labels[:, :, None] == classes) & counts[:, :, None], 1)
    return x, labels, counts, is_target


@lowers(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss(self: jax.Array, target: jax.Array, reduction: int) -> tuple[jax.Array, jax.Array]:
    x, labels, counts, is_target = _labels(self, target)
    picked = jnp.take_along_axis(x, jnp.where(counts, labels, 0), 1, mode="clip")
    hinges = jnp.maximum(1 - picked[:, :, None] + x[:, None, :], 0)
    counted = counts[:, :, None] & ~is_target[:, None, :]
    losses = jnp.sum(jnp.where(counted, hinges, jnp.zeros((), x.dtype)), (1, 2)) / x.shape[1]
    losses = losses if self.ndim > 1 or reduction != NONE else losses[0]
    return reduced(losses, reduction), is_target.reshape(target.shape).astype(self.dtype)


@lowers(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int, is_target: jax.Array
) -> jax.Array:
    x, labels, counts, labelled = _labels(self, target)
    index = jnp.where(counts, labels, 0)
    picked = jnp.take_along_axis(x, index, 1, mode="clip")
    counted = counts[:, :, None] & ~labelled[:, None, :]
    is_open = (counted & (1 - picked[:, :, None] + x[:, None, :] > 0)).astype(x.dtype) / x.shape[1]
    classes = jnp.arange(x.shape[1], dtype=index.dtype)
    towards = jnp.sum(jnp.where(index[:, :, None] == classes, jnp.sum(is_open, 2)[:, :, None], 0), 1)
    gradient = widened(grad_output).reshape(-1, 1) / (x.shape[0] if reduction == MEAN else 1)
    return ((jnp.sum(is_open, 1) - towards) * gradient).reshape(self.shape)
