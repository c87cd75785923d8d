"""Attention as one operator, forward and backward, instead of the chain of products PyTorch makes of it elsewhere."""

from typing import Any

import torch
from torch import Tensor

from ..private import torch as private

aten = torch.ops.aten


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`."""
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)
    if _fits(query, key, value, attn_mask, is_causal, enable_gqa) and private.fused_attention_enabled():
        fused: Any = aten._scaled_dot_product_fused_attention_overrideable(*arguments, scale=scale)
        return fused[0]  # type: ignore[no-any-return]
    whole: Any = aten._scaled_dot_product_attention_math(*arguments, scale=scale, enable_gqa=enable_gqa)
    return whole[0]  # type: ignore[no-any-return]


def _fits(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, enable_gqa: bool
) -> bool:
    # PyTorch's own meta kernel describes the fused operator for batches of heads alone. Everything unusual, wrong
    # arguments among it, goes to the composition, which has the messages for it.
    return (
        query.dim() == key.dim() == value.dim() == 4
        and not enable_gqa
        and query.dtype is key.dtype is value.dtype
        and query.dtype.is_floating_point
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and query.shape[3] == key.shape[3]
        and key.shape[2] == value.shape[2]
        and (attn_mask is None or (not is_causal and attn_mask.dtype in (torch.bool, query.dtype)))
        and query.numel() > 0
        and key.numel() > 0
    )


def register_attention() -> list[torch.library.Library]:
    """Takes the place of PyTorch's composition, which asks a C++ table that Python cannot enter."""
    libraries = []
    for dispatch_key in ("AutogradPrivateUse1", "PrivateUse1"):
        library = torch.library.Library("aten", "IMPL", dispatch_key)
        library.impl("scaled_dot_product_attention", scaled_dot_product_attention, dispatch_key)
        libraries.append(library)
    return libraries
