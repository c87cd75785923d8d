"""Inference fast paths of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`, each as one operation."""

import math

import jax
import jax.numpy as jnp
import torch

from ..linear_algebra.matmul import contract, linear
from ..machinery.opmath import widened
from ..machinery.registry import lowers
from ..reductions.softmax import masked_softmax

aten = torch.ops.aten

BATCH_AND_HEAD = ((0, 1), (0, 1))


def _heads(projected: jax.Array, num_heads: int) -> jax.Array:
    """Return (batch, row, feature) as (batch, head, row, feature of the head)."""
    batch, rows, features = projected.shape
    return projected.reshape(batch, rows, num_heads, features // num_heads).swapaxes(1, 2)


@lowers(aten._transform_bias_rescale_qkv.default)
def transform_bias_rescale_qkv(
    qkv: jax.Array, qkv_bias: jax.Array, num_heads: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    query, key, value = jnp.split((widened(qkv) + widened(qkv_bias)).astype(qkv.dtype), 3, -1)
    scale = 1 / math.sqrt(query.shape[-1] // num_heads)
    query = (widened(query) * scale).astype(query.dtype)
    return _heads(query, num_heads), _heads(key, num_heads), _heads(value, num_heads)


@lowers(aten._native_multi_head_attention.default)
def native_multi_head_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    embed_dim: int,
    num_head: int,
    qkv_weight: jax.Array,
    qkv_bias: jax.Array,
    proj_weight: jax.Array,
    proj_bias: jax.Array,
    mask: jax.Array | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    dtype = query.dtype
    if query is key and key is value:
        qkv = linear(query, qkv_weight)
    else:
        weights_of_three = jnp.split(qkv_weight, 3)
        products = map(linear, (query, key, value), weights_of_three)
        qkv = jnp.concatenate(list(products), -1)
    heads = transform_bias_rescale_qkv(qkv.astype(dtype), qkv_bias, num_head)
    scores = contract(heads[0], heads[1], ((3,), (3,)), BATCH_AND_HEAD)
    hidden = jnp.zeros(scores.shape, bool) if mask is None else mask.astype(bool)
    weights = masked_softmax(scores, hidden, -1, None if mask is None else mask_type)
    context = contract(weights.astype(dtype), heads[2], ((3,), (2,)), BATCH_AND_HEAD).astype(dtype)
    joined = context.swapaxes(1, 2).reshape(query.shape)
    output = linear(joined, proj_weight, proj_bias).astype(dtype)
    if not need_weights:
        return output, None
    return output, jnp.mean(weights, 1) if average_attn_weights else weights


def _layer_norm(input: jax.Array, weight: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
    wide = widened(input)
    centred = wide - jnp.mean(wide, -1, keepdims=True)
    variance = jnp.mean(centred * centred, -1, keepdims=True)
    return (centred / jnp.sqrt(variance + eps) * widened(weight) + widened(bias)).astype(input.dtype)


@lowers(aten._transformer_encoder_layer_fwd.default)
def transformer_encoder_layer(
    src: jax.Array,
    embed_dim: int,
    num_heads: int,
    qkv_weight: jax.Array,
    qkv_bias: jax.Array,
    proj_weight: jax.Array,
    proj_bias: jax.Array,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: jax.Array,
    norm_bias_1: jax.Array,
    norm_weight_2: jax.Array,
    norm_bias_2: jax.Array,
    ffn_weight_1: jax.Array,
    ffn_bias_1: jax.Array,
    ffn_weight_2: jax.Array,
    ffn_bias_2: jax.Array,
    mask: jax.Array | None = None,
    mask_type: int | None = None,
) -> jax.Array:
    dtype = src.dtype

    def attend(x: jax.Array) -> jax.Array:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return native_multi_head_attention(
            x, x, x, embed_dim, num_heads, *projections, mask, need_weights=False, mask_type=mask_type
        )[0]

    def feed_forward(x: jax.Array) -> jax.Array:
        hidden = linear(x, ffn_weight_1, ffn_bias_1)
        hidden = jax.nn.gelu(hidden, approximate=False) if use_gelu else jax.nn.relu(hidden)
        return linear(hidden.astype(dtype), ffn_weight_2, ffn_bias_2).astype(dtype)

    def first_norm(x: jax.Array) -> jax.Array:
        return _layer_norm(x, norm_weight_1, norm_bias_1, eps)

    def second_norm(x: jax.Array) -> jax.Array:
        return _layer_norm(x, norm_weight_2, norm_bias_2, eps)

    if norm_first:
        attended = src + attend(first_norm(src))
        return attended + feed_forward(second_norm(attended))
    attended = first_norm(src + attend(src))
    return second_norm(attended + feed_forward(attended))
