"""Splash attention: several query heads to a head of keys, local windows, capped scores."""

import json

import jax
import torch
from torch import Tensor

from ..machinery.registry import lowers
from ..machinery.xla_op_schemas import define, differentiate
from .blockwise_attention import Scoring, by_blocks, gradients, like_query, statistics


def scoring(config: str, causal: bool | None, soft_cap: object) -> Scoring:
    """Return the scoring options of the configuration. Its block sizes are hints for TPUs and have no effect here."""
    found = json.loads(config)
    window = found.get("slide_window_size") if found.get("attentiontype_local_sliding") else None
    return Scoring(bool(causal), 1.0, soft_cap, window)


FORWARD = define(
    "sa_custom_forward(Tensor q, Tensor k, Tensor v, str config, Tensor? decoder_segment_ids, bool? causal, "
    "float? attn_logits_soft_cap) -> (Tensor, Tensor, Tensor)",
    lambda q, *_: (like_query(q), *statistics(q)),
)


@lowers(FORWARD)
def forward(
    q: jax.Array, k: jax.Array, v: jax.Array, config: str, decoder_segment_ids: jax.Array | None, causal: bool | None,
    attn_logits_soft_cap: object,
) -> list[jax.Array]:  # fmt: skip
    """Return the result, and for each row the sum of its exponentials and its largest score."""
    how = scoring(config, causal, attn_logits_soft_cap)
    return list(by_blocks(q, k, v, None, decoder_segment_ids, decoder_segment_ids, how))


def _backward_like(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, ...]:
    return tuple(map(torch.empty_like, (q, k, v)))


BACKWARD = define(
    "sa_custom_backward(Tensor grad_output, Tensor q, Tensor k, Tensor v, str config, Tensor? decoder_segment_ids, "
    "bool? causal, float? attn_logits_soft_cap) -> (Tensor, Tensor, Tensor)",
    _backward_like,
)


@lowers(BACKWARD)
def backward(
    grad_output: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, config: str, decoder_segment_ids: object,
    causal: bool | None, attn_logits_soft_cap: object,
) -> list[jax.Array]:  # fmt: skip
    """Return the gradients by q, k and v; the rows are computed again."""
    how = scoring(config, causal, attn_logits_soft_cap)
    return list(gradients(grad_output, (q, k, v, None), (decoder_segment_ids,) * 2, how))


def _gradients(inputs: dict[str, torch.Tensor], grad: Tensor, *_: object) -> dict[str, torch.Tensor]:
    settings = ("q", "k", "v", "config", "decoder_segment_ids", "causal", "attn_logits_soft_cap")
    return dict(zip("qkv", torch.ops.xla.sa_custom_backward(grad, *map(inputs.__getitem__, settings)), strict=True))


differentiate(FORWARD, _gradients)
