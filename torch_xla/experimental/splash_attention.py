"""Splash attention: several query heads to a head of keys, local windows, capped scores."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import jax
import torch
from torch import Tensor

from .._engine.lowering.fused_kernels import splash_kernel

sa_custom_forward = torch.ops.xla.sa_custom_forward
sa_custom_backward = torch.ops.xla.sa_custom_backward


@dataclass(eq=True, frozen=True)
class SplashAttentionConfig:
    """The options of splash attention. Block sizes, layouts, mesh and specs are hints for TPUs and have no effect here.

    With `attentiontype_local_sliding` a query attends to keys at a distance of at most `slide_window_size`.
    """

    mesh: str | None = None
    qkv_partition_spec: object = None
    segment_ids_partition_spec: object = None
    sa_block_q: int = 2048
    sa_block_kv: int = 2048
    sa_block_kv_compute: int = 2048
    sa_block_q_dkv: int = 2048
    sa_block_kv_dkv: int = 2048
    sa_block_kv_dkv_compute: int = 2048
    sa_block_q_dq: int = 2048
    sa_block_kv_dq: int = 2048
    sa_use_fused_bwd_kernel: bool = True
    sa_q_layout: str = "HEAD_DIM_MINOR"
    sa_k_layout: str = "HEAD_DIM_MINOR"
    sa_v_layout: str = "HEAD_DIM_MINOR"
    attentiontype_local_sliding: bool = False
    slide_window_size: int | None = None

    def to_json(self) -> str:
        """Return the options as text, for `splash_attention`.

        >>> from torch_xla.experimental.splash_attention import SplashAttentionConfig
        >>> config = SplashAttentionConfig(attentiontype_local_sliding=True, slide_window_size=4)
        >>> SplashAttentionConfig.from_json(config.to_json()) == config
        True
        """
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, json_str: str) -> "SplashAttentionConfig":
        """Return the options in a text of `to_json`. Raises `ValueError` for an unknown field."""
        found: Mapping[str, object] = json.loads(json_str)
        unknown = sorted(set(found) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"SplashAttentionConfig.from_json(): unknown field {unknown[0]!r}")
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
        }
        return cls(**options)


def sa_custom_forward_fake(q: Tensor, *_: object) -> tuple[Tensor, ...]:
    """Return the results of `torch.ops.xla.sa_custom_forward` without values."""
    sums, most = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2))
    return torch.empty_like(q), sums, most


def sa_custom_backward_fake(grad_output: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, ...]:
    """Return the results of `torch.ops.xla.sa_custom_backward` without values."""
    return tuple(map(torch.empty_like, (q, k, v)))


class SplashAttention(torch.autograd.Function):
    """Splash attention as an autograd function, whose forward and backward pass are one operator each."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, config: str, decoder_segment_ids: Tensor | None, causal: bool,
        attn_logits_soft_cap: float | None,
    ) -> Tensor:  # fmt: skip
        """Return the result."""
        ctx.save_for_backward(q, k, v, decoder_segment_ids)
        ctx.settings = config, causal, attn_logits_soft_cap
        result: Tensor = sa_custom_forward(q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap)[0]
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to q, k and v."""
        q, k, v, segments = ctx.saved_tensors
        config, causal, cap = ctx.settings
        return (*sa_custom_backward(grads[0], q, k, v, config, segments, causal, cap), None, None, None, None)


def splash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: str,
    decoder_segment_ids: Tensor | None = None,
    causal: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """Compute softmax(q kᵀ) v, with few rows of scores in memory at once. The caller scales `q`.

    Sizes: q [batch, heads, length, width], k and v [batch, key heads, length, width], where each key head serves the
    same number of neighbouring query heads; segment ids [batch, length]: tokens attend only within their segment.
    `config` is `SplashAttentionConfig(...).to_json()`; `attn_logits_soft_cap` c makes scores c · tanh(score / c).

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.splash_attention import SplashAttentionConfig, splash_attention
    >>> q, k = torch.ones(1, 4, 8, 16, device="xla"), torch.ones(1, 2, 8, 16, device="xla")
    >>> splash_attention(q, k, k, SplashAttentionConfig().to_json()).shape
    torch.Size([1, 4, 8, 16])
    """
    if q.dim() != 4 or k.shape != v.shape or q.shape[1] % k.shape[1] or q.shape[3] != k.shape[3]:
        sizes = f"{list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        raise ValueError(
            f"splash_attention() takes q [batch, heads, length, width] and k, v [batch, key heads, length, width], a "
            f"divisor of the heads; got {sizes}"
        )
    if not isinstance(config, str):
        raise TypeError("splash_attention() takes its configuration as text: SplashAttentionConfig(...).to_json()")
    result: Tensor = sa_custom_forward(q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap)[0]
    return result


def tpu_splash_attention_jax_call_wrapper(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    config: SplashAttentionConfig,
    decoder_segment_ids: Tensor | None,
    causal: bool,
    attn_logits_soft_cap: float | None = None,
    is_forward: bool = True,
    grad_output: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the result and two `None`, or with `is_forward=False` the gradients of query, key and value."""
    settings = (query, key, value, config.to_json(), decoder_segment_ids, causal, attn_logits_soft_cap)
    if is_forward:
        return sa_custom_forward(*settings)[0], None, None
    return tuple(sa_custom_backward(grad_output, *settings))


def splash_attention_jax_wrapper(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    decoder_segment_ids: jax.Array | None,
    causal: bool,
    config: SplashAttentionConfig,
    attn_logits_soft_cap: float | None,
) -> jax.Array:
    """Compute splash attention of JAX's arrays."""
    return splash_kernel.forward(
        query, key, value, config.to_json(), decoder_segment_ids, causal, attn_logits_soft_cap
    )[0]
