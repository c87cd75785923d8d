"""Scaled dot-product attention as one operation, and its gradient.

Inside, queries have the dimensions (batch, head of the keys, group, row, feature): several query heads may share one
head of keys and values. Scores are computed for all rows at once, or, if they are many, for one block of rows after the
other.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..linear_algebra.matmul import contract, summed_to
from ..machinery.barrier import once_on_cpu
from ..machinery.opmath import number_as, widened
from ..machinery.registry import lowers
from ..machinery.replica_axis import target_in_use
from ..random_numbers.random import chance, dropout_scale
from . import cudnn_attention, flash_attention_on_tpu
from .fused_attention import AttentionCall, FusedKernel

aten = torch.ops.aten

# With more scores than the first number, rows are taken in blocks of the second: 1 GiB and 256 MiB of float32.
MOST_SCORES = 2**28
SCORES_OF_A_BLOCK = 2**26
# On each device of a TPU a block stays in the chip's own memory: 16 MiB of float32. It has rows enough for products.
SCORES_OF_A_TPU = 2**22
ROWS_OF_A_TPU = 128


# The first that takes the operands computes the attention; without one, products and a softmax do.
KERNELS: tuple[FusedKernel, ...] = (cudnn_attention, flash_attention_on_tpu)

BATCH_AND_HEAD = ((0, 1), (0, 1))
ROW = 3


@dataclass(frozen=True, slots=True)
class Attention:
    """The options and operands that all rows share, forward and backward."""

    key: jax.Array
    value: jax.Array
    scale: float | None
    is_causal: bool
    dropout_p: float
    randomness: jax.Array | None  # of a call with dropout

    def scores(self, query: jax.Array, bias: jax.Array | None, start: jax.Array | int) -> jax.Array:
        """Return scores by (batch, head, group, row, column), of rows from `start` on."""
        narrow = query.dtype.itemsize < 4
        if not narrow:
            query = query * number_as(self.scale, query.dtype)
        scores = contract(query, self.key, ((4,), (3,)), BATCH_AND_HEAD)
        if narrow:
            scores = scores * number_as(self.scale, scores.dtype)
        if bias is not None:
            scores = jnp.where(bias, scores, -jnp.inf) if bias.dtype == np.bool_ else scores + widened(bias)
        if self.is_causal:
            row = lax.broadcasted_iota(np.int32, scores.shape[-2:], 0) + start
            scores = jnp.where(lax.broadcasted_iota(np.int32, scores.shape[-2:], 1) <= row, scores, -jnp.inf)
        return scores

    def kept(self, shape: tuple[int, ...], block: jax.Array | None) -> jax.Array | None:
        """Return which weights dropout keeps: the same at every call for the same block."""
        if isinstance(self.dropout_p, (int, float)) and self.dropout_p == 0:
            return None
        assert self.randomness is not None
        randomness = self.randomness if block is None else jax.random.fold_in(self.randomness, block)
        return chance(randomness, shape, 1 - self.dropout_p)

    def dropped(self, weights: jax.Array, kept: jax.Array | None) -> jax.Array:
        """Return `weights`, or their gradients, after dropout."""
        if kept is None:
            return weights
        scale = number_as(dropout_scale(self.dropout_p), weights.dtype)
        return jnp.where(kept, weights * scale, jnp.zeros((), weights.dtype))

    def forward(
        self, query: jax.Array, bias: jax.Array | None, start: jax.Array | int = 0, block: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Return the output, and the logarithm of the sum of the exponentials of every row of scores."""
        scores = self.scores(query, bias, start)
        largest, powers, total = _exponentials(scores)
        weights = self.dropped(powers, self.kept(scores.shape, block)).astype(query.dtype)
        output = contract(weights, self.value, ((4,), (2,)), BATCH_AND_HEAD)
        return output / jnp.where(total == 0, jnp.ones((), total.dtype), total), _log_sum(largest, total)

    def backward(
        self,
        grad: jax.Array,
        query: jax.Array,
        bias: jax.Array | None,
        output: jax.Array,
        log_sum: jax.Array,
        start: jax.Array | int = 0,
        block: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Return gradients of query, key and value, and of the scores."""
        narrow = query.dtype
        scores = self.scores(query, bias, start)
        if scores.dtype == np.float64:
            # PyTorch keeps the logarithms in float32.
            largest, _, total = _exponentials(scores)
            log_sum = _log_sum(largest, total)
        weights = jnp.exp(scores - log_sum[..., None])
        kept = self.kept(scores.shape, block)
        rows = ((2, ROW), (2, ROW))
        grad_value = contract(self.dropped(weights, kept).astype(narrow), grad, rows, BATCH_AND_HEAD)
        grad_weights = self.dropped(contract(grad, self.value, ((4,), (3,)), BATCH_AND_HEAD), kept)
        mean = jnp.sum(widened(grad) * widened(output), -1, keepdims=True)
        grad_scores = weights * (grad_weights - mean)
        # Otherwise the exponentials are computed again in front of each product.
        scaled = once_on_cpu((grad_scores * number_as(self.scale, weights.dtype)).astype(narrow))
        grad_query = contract(scaled, self.key, ((4,), (2,)), BATCH_AND_HEAD)
        grad_key = contract(scaled, query, rows, BATCH_AND_HEAD)
        return grad_query, grad_key, grad_value, grad_scores


def _exponentials(scores: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return each row's largest score, the exponentials beside it, and their sum. All are 0 where a row sees
    nothing.
    """
    largest = jnp.max(scores, -1, keepdims=True, initial=-jnp.inf)
    largest = jnp.where(largest == -jnp.inf, jnp.zeros((), scores.dtype), largest)
    powers = jnp.exp(scores - largest)
    return largest, powers, jnp.sum(powers, -1, keepdims=True)


def _log_sum(largest: jax.Array, total: jax.Array) -> jax.Array:
    # Where a row sees nothing, infinity makes its weights 0 again in the backward computation.
    return jnp.where(total == 0, jnp.inf, largest + jnp.log(total))[..., 0]


def _grouped(call: AttentionCall, randomness: jax.Array | None) -> tuple[jax.Array, jax.Array | None, Attention]:
    """Return the queries, the bias, and what all rows share.

    They get a batch dimension, and the query heads are grouped by the head of the keys that they share.
    """
    query, key, value = (each[None] if call.query.ndim == 3 else each for each in (call.query, call.key, call.value))
    batch, heads, rows, features = query.shape
    if key.shape[1] != value.shape[1] or heads % key.shape[1]:
        raise ValueError(
            f"scaled_dot_product_attention(): {heads} query heads cannot share {key.shape[1]} heads of keys and "
            f"{value.shape[1]} of values. Give keys and values the same number of heads, a divisor of the query's."
        )
    query = query.reshape(batch, key.shape[1], heads // key.shape[1], rows, features)
    key, value = (jnp.broadcast_to(array, (batch, *array.shape[1:])) for array in (key, value))
    bias = call.bias
    if bias is not None:
        bias_batch, bias_heads, *scores = (1,) * (4 - bias.ndim) + bias.shape
        bias = bias.reshape(bias_batch, *((1, 1) if bias_heads == 1 else query.shape[1:3]), *scores)
    return query, bias, Attention(key, value, call.factor, call.is_causal, call.dropout_p, randomness)


def _blocks(query: jax.Array, key: jax.Array) -> tuple[int, int]:
    """Return the number of blocks of rows, and the rows of each."""
    rows = query.shape[ROW]
    scores_of_a_row = math.prod(query.shape[:ROW]) * key.shape[2]
    target = target_in_use()
    most, scores, least = MOST_SCORES, SCORES_OF_A_BLOCK, 1
    if target is not None and target.platform == "tpu":
        most = scores = SCORES_OF_A_TPU * (len(target.devices) if target.is_spread else 1)
        least = ROWS_OF_A_TPU
    if rows <= least or rows * scores_of_a_row <= most:
        return 1, rows
    size = max(least, scores // scores_of_a_row)
    return -(-rows // size), size


def _in_blocks(array: jax.Array, count: int, size: int, fill: float = 0.0) -> jax.Array:
    """Return rows padded with `fill` and cut into blocks, which become the first dimension."""
    widths = [(0, count * size - dim if axis == ROW else 0, 0) for axis, dim in enumerate(array.shape)]
    padded = lax.pad(array, jnp.asarray(fill, array.dtype), widths)
    shape = (*array.shape[:ROW], count, size, *array.shape[ROW + 1 :])
    return jnp.moveaxis(padded.reshape(shape), ROW, 0)


def _from_blocks(array: jax.Array, rows: int) -> jax.Array:
    array = jnp.moveaxis(array, 0, ROW)
    joined = array.reshape(*array.shape[:ROW], math.prod(array.shape[ROW : ROW + 2]), *array.shape[ROW + 2 :])
    return lax.slice_in_dim(joined, 0, rows, axis=ROW)


def _bias_in_blocks(bias: jax.Array | None, count: int, size: int) -> jax.Array | None:
    if bias is None or bias.shape[ROW] == 1:
        return None if bias is None else jnp.broadcast_to(bias, (count, *bias.shape))
    return _in_blocks(bias, count, size)


@lowers(aten._scaled_dot_product_fused_attention_overrideable.default, random=True, rate=(4, "dropout_p"))
def attention(
    query: jax.Array,
    key_: jax.Array,
    value: jax.Array,
    attn_bias: jax.Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    key: jax.Array | None = None,
) -> tuple[jax.Array | int | None, ...]:
    call = AttentionCall(query, key_, value, attn_bias, dropout_p, is_causal, scale)
    fused = filter(None, (kernel.attention(call) for kernel in KERNELS))
    output, log_sum = next(fused, None) or _composed(call, key)
    if key is None:  # without dropout the gradient reads neither
        words = jnp.zeros(2, np.int64)
    else:
        words = lax.bitcast_convert_type(jax.random.key_data(key).reshape(2, 2), np.int64)
    return output, log_sum, None, None, query.shape[-2], key_.shape[-2], words[0], words[1], None


def _composed(call: AttentionCall, randomness: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Return the output, and the logarithm of the sum of the exponentials, of products and a softmax."""
    query, bias, shared = _grouped(call, randomness)
    count, size = _blocks(query, shared.key)
    if count == 1:
        output, log_sum = shared.forward(query, bias)
    else:
        blocks = jnp.arange(count), _in_blocks(query, count, size), _bias_in_blocks(bias, count, size)
        output, log_sum = lax.map(lambda x: shared.forward(x[1], x[2], x[0] * size, x[0]), blocks)
        output, log_sum = _from_blocks(output, query.shape[ROW]), _from_blocks(log_sum, query.shape[ROW])
    output = output.reshape(*call.query.shape[:-1], call.value.shape[-1])
    return output, log_sum.reshape(query.shape[0], *call.query.shape[-3:-1])


@lowers(aten._scaled_dot_product_fused_attention_overrideable_backward.default)
def attention_backward(
    grad_out: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_bias: jax.Array | None,
    grad_input_mask: list[bool],
    out: jax.Array,
    logsumexp: jax.Array,
    cum_seq_q: jax.Array | None,
    cum_seq_k: jax.Array | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: jax.Array,
    philox_offset: jax.Array,
    *,
    scale: float | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    call = AttentionCall(query, key, value, attn_bias, dropout_p, is_causal, scale)
    for kernel in KERNELS:
        if (fused := kernel.gradients(call, grad_out, out, logsumexp)) is not None:
            return *fused, None
    # The seed and the offset are the two halves of the key that the forward computation drew with.
    halves = lax.bitcast_convert_type(jnp.stack([philox_seed, philox_offset]), np.uint32)
    randomness = jax.random.wrap_key_data(halves.reshape(4), impl="rbg")
    rows, bias, shared = _grouped(call, randomness)
    shape, features = rows.shape[:-1], value.shape[-1]
    grad_out, out = grad_out.reshape(*shape, features), out.reshape(*shape, features)
    operands = grad_out, rows, bias, out, logsumexp.reshape(shape)
    count, size = _blocks(rows, shared.key)
    if count == 1:
        grad_query, grad_key, grad_value, grad_scores = shared.backward(*operands)
        grad_bias = None if bias is None else summed_to(grad_scores, bias.shape)
    else:
        grad_query, grad_key, grad_value, grad_bias = _backward_in_blocks(shared, count, size, *operands)
    if bias is None or attn_bias is None:
        grad_bias = None
    elif not grad_input_mask[3] or grad_bias is None:
        grad_bias = jnp.zeros_like(attn_bias)
    else:
        grad_bias = grad_bias.reshape(attn_bias.shape)
    return (
        grad_query.reshape(query.shape),
        summed_to(grad_key, (1,) * (4 - key.ndim) + key.shape).reshape(key.shape),
        summed_to(grad_value, (1,) * (4 - value.ndim) + value.shape).reshape(value.shape),
        grad_bias,
    )


def _backward_in_blocks(
    shared: Attention,
    count: int,
    size: int,
    grad: jax.Array,
    query: jax.Array,
    bias: jax.Array | None,
    output: jax.Array,
    log_sum: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    def add(sums: tuple[jax.Array, jax.Array], block: tuple[Any, ...]) -> Any:
        index, grad, query, bias, output, log_sum = block
        grads = shared.backward(grad, query, bias, output, log_sum, index * size, index)
        grad_bias = None if bias is None else summed_to(grads[3], bias.shape)
        return (sums[0] + grads[1], sums[1] + grads[2]), (grads[0], grad_bias)

    # Rows that only fill the last block have weights of 0.
    blocks = (
        jnp.arange(count),
        _in_blocks(grad, count, size),
        _in_blocks(query, count, size),
        _bias_in_blocks(bias, count, size),
        _in_blocks(output, count, size),
        _in_blocks(log_sum, count, size, np.inf),
    )
    zeros = jnp.zeros_like(widened(shared.key)), jnp.zeros_like(widened(shared.value))
    (grad_key, grad_value), (grad_query, grad_bias) = lax.scan(add, zeros, blocks)
    rows = query.shape[ROW]
    if bias is not None and grad_bias is not None:
        grad_bias = jnp.sum(grad_bias, 0) if bias.shape[ROW] == 1 else _from_blocks(grad_bias, rows)
    return _from_blocks(grad_query, rows), grad_key, grad_value, grad_bias
