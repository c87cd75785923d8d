"""Flash attention: as a function, as an autograd function, and its two operators."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._engine.compat.names.torch import is_traced
from .._engine.lowering.fused_kernels import blockwise_attention
from ..core.xla_builder import call_jax

fa_custom_forward = torch.ops.xla.fa_custom_forward
fa_custom_backward = torch.ops.xla.fa_custom_backward


def fa_custom_forward_fake(*args: Any) -> tuple[Tensor, ...]:
    """Return the results of `torch.ops.xla.fa_custom_forward` without values."""
    return blockwise_attention.flash_forward_like(*args)


def fa_custom_backward_fake(*args: Any) -> tuple[Tensor, ...]:
    """Return the results of `torch.ops.xla.fa_custom_backward` without values."""
    return blockwise_attention.flash_backward_like(*args)


class FlashAttention(torch.autograd.Function):
    """Attention as an autograd function, whose forward and backward pass are one operator each.

    `flash_attention`, which has gradients of any order, is the same function.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.custom_kernel import FlashAttention
    >>> q = torch.ones(1, 2, 8, 4, device="xla", requires_grad=True)
    >>> FlashAttention.apply(q, q, q, True, None, None, 0.5).sum().backward()
    >>> q.grad.shape
    torch.Size([1, 2, 8, 4])
    """

    @staticmethod
    def prepare_segment_ids(
        q_segment_ids: Tensor | None, kv_segment_ids: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return both arguments: a pair of tensors, or `(None, None)`. Raises `ValueError` if only one is given."""
        if (q_segment_ids is None) is not (kv_segment_ids is None):
            raise ValueError("flash_attention() takes segment ids of both queries and keys, or of neither")
        return q_segment_ids, kv_segment_ids

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, q_segment_ids: Tensor | None,
        kv_segment_ids: Tensor | None, sm_scale: float, ab: Tensor | None = None, partition_spec: object = None,
        mesh: object = None,
    ) -> Tensor:  # fmt: skip
        """Return the result. Partition spec and mesh are not used, because XLA divides the operation."""
        ids = FlashAttention.prepare_segment_ids(q_segment_ids, kv_segment_ids)
        wanted = list(ctx.needs_input_grad[:3])
        found = fa_custom_forward(q, k, v, causal, *ids, float(sm_scale), ab, None, None, wanted)
        ctx.save_for_backward(q, k, v, found[0], found[4], found[5], *ids, ab)
        ctx.settings = causal, float(sm_scale), wanted
        result: Tensor = found[0]
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to q, k, v and ab."""
        *saved, ab = ctx.saved_tensors
        causal, scale, wanted = ctx.settings
        found = fa_custom_backward(grads[0], *saved, ab, causal, scale, None, None, [], [], None, wanted)
        return (*found[:3], None, None, None, None, None if ab is None else found[3], None, None)


def flash_attention_xla(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Compute `torch.ops.xla.flash_attention`: attention with a scale of 1."""
    result: Tensor = torch.ops.xla.flash_attention(q, k, v, causal)
    return result


# The operator computes the same on the CPU.
flash_attention_non_xla = flash_attention_xla


def generate_ctx_need_grad(*args: object) -> Sequence[bool]:
    """Return for each argument whether it is a tensor that needs a gradient."""
    return [isinstance(each, Tensor) and each.requires_grad for each in args]


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    q_segment_ids: Tensor | None = None,
    kv_segment_ids: Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: Tensor | None = None,
    partition_spec: object = None,
    mesh: object = None,
) -> Tensor:
    """Compute softmax((q kᵀ + ab) · sm_scale) v, with few rows of scores in memory at once.

    Sizes: q [batch, heads, queries, width], k and v [batch, heads, keys, width], `ab` [batch, heads, queries, keys].
    A query attends to keys of its own segment ([batch, queries] and [batch, keys], both or none), and with `causal` to
    none after its own position. The default of `sm_scale` is 1. If tensors are divided among devices, XLA divides this
    operation too; `partition_spec` and `mesh` are accepted and not used.

    Raises `ValueError` for sizes that do not fit, and for segments of only queries or only keys.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import flash_attention
    >>> q = k = v = torch.ones(1, 2, 8, 4, device="xla")
    >>> flash_attention(q, k, v, causal=True, sm_scale=0.5).shape
    torch.Size([1, 2, 8, 4])
    """
    if q.dim() != 4 or k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        sizes = f"{list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        raise ValueError(f"flash_attention() takes q, k and v of sizes [batch, heads, length, width]; got {sizes}")
    if (q_segment_ids is None) is not (kv_segment_ids is None):
        raise ValueError("flash_attention() takes segment ids of both queries and keys, or of neither")
    if ab is not None:
        ab = ab.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    if torch.compiler.is_compiling() or is_traced():  # also in the body of a scan
        settings = (bool(causal), q_segment_ids, kv_segment_ids, float(sm_scale), ab, None, None, [True] * 3)
        found: Tensor = fa_custom_forward(q, k, v, *settings)[0]
        return found
    arguments = (q, k, v, ab, q_segment_ids, kv_segment_ids, bool(causal), float(sm_scale))
    result: Tensor = call_jax(blockwise_attention.attention, arguments, {}, "flash_attention")
    return result
