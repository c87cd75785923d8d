"""FLOP formulas for operators that only `xla` runs whole: `torch.utils.flop_counter` counts what it counts on the CPU.

The counter counts matrix products. It sees those of a linear layer's forward pass, but not those of its gradient. The
formulas are registered when the counter is imported, which most programs do not do.
"""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...compat import import_hooks

_COUNTER = "torch.utils.flop_counter"


def register_when_asked_for() -> None:
    """Register the formulas, now or as soon as there is a registry."""
    import_hooks.when_imported(_COUNTER, _register)


def _register(counter: ModuleType) -> None:
    for name, formula in _FORMULAS.items():
        operator = getattr(torch.ops.aten, name)
        if operator not in counter.flop_registry:
            counter.register_flop_formula(operator, get_raw=True)(formula)


def _linear_backward(input: Tensor, grad: Tensor, weight: Tensor, output_mask: Sequence[bool], **_: object) -> int:
    """Return a product for the gradient of the input, and one for that of the weight. With vectors none is counted."""
    return 2 * input.numel() * weight.shape[0] * sum(output_mask[:2]) if weight.dim() == 2 else 0


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    *_: object,
    **__: object,
) -> int:
    needs_bias = attn_bias is not None and attn_bias.requires_grad
    if _is_composed(query, value, dropout_p, needs_bias):
        return _products(query, key, value, of_scores=1, of_values=1)
    return _products(query, key, value, of_scores=1, of_values=1) if _kernels_are_counted() else 0


def _attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    is_needed: Sequence[bool],
    *rest: Any,
    **_: object,
) -> int:
    to_query, to_key, to_value, to_bias = is_needed
    if _is_composed(query, value, rest[6], to_bias):
        of_values = to_value + (to_query or to_key or to_bias)
        return _products(query, key, value, of_scores=to_query + to_key, of_values=of_values)
    # Whatever is needed, the kernel computes the scores once more, and both gradients of each product.
    return _products(query, key, value, of_scores=3, of_values=2) if _kernels_are_counted() else 0


def _is_composed(query: Tensor, value: Tensor, dropout_p: float, needs_bias: bool) -> bool:
    """Return whether the CPU composes attention of products, without a kernel for the whole."""
    return bool(dropout_p or needs_bias or query.shape[-1] != value.shape[-1])


def _kernels_are_counted() -> bool:
    """Return whether PyTorch has a formula for this kernel, as it has from 2.15 on."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu in sys.modules[_COUNTER].flop_registry


def _products(query: Tensor, key: Tensor, value: Tensor, of_scores: int, of_values: int) -> int:
    scores = query.shape[:-1].numel() * key.shape[-2]
    return 2 * scores * (query.shape[-1] * of_scores + value.shape[-1] * of_values)


_FORMULAS: dict[str, Callable[..., int]] = {
    "linear_backward": _linear_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
}
