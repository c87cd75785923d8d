"""Attention as one operator, forward and backward, instead of a chain of matrix products."""

from typing import Any

import torch
from torch import Tensor

from ...compat.names import torch as private
from .. import missing_meta_kernels
from ..append_calls import attended
from ..recording_kernel import recorder

aten = torch.ops.aten

# From 2.14 on, PyTorch refuses every mask beside the causal one.
_NEVER_BOTH = torch.__version__ >= (2, 14)  # type: ignore[operator]


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
    """Implement `torch.nn.functional.scaled_dot_product_attention`."""
    _refuse_mistakes(query, key, value, attn_mask)
    if attn_mask is not None and is_causal and _NEVER_BOTH:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
    if attn_mask is None and not is_causal and (rooms := attended(query, key, value)) is not None:
        key, value, attn_mask = rooms
    is_fused = _fits(query, key, value, enable_gqa) and _takes_mask(query, value, attn_mask, dropout_p, is_causal)
    # Of the fused operator PyTorch knows no form for a batch that `torch.func.vmap` hides.
    if is_fused and private.fused_attention_enabled() and not private.transforms_are_active():
        arguments = (query, key, value, attn_mask, dropout_p, is_causal)
        fused: Any = aten._scaled_dot_product_fused_attention_overrideable(*arguments, scale=scale)
        return fused[0]  # type: ignore[no-any-return]
    if attn_mask is not None and is_causal and not is_fused:
        _refuse_lines(query, key, value, attn_mask, dropout_p, enable_gqa)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        # The composition adds the mask, whatever it is made of.
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)
    whole: Any = aten._scaled_dot_product_attention_math(*arguments, scale=scale, enable_gqa=enable_gqa)
    return whole[0]  # type: ignore[no-any-return]


def _refuse_mistakes(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> None:
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be at least 2 dimensional, but got query.dim: "
            f"{query.dim()} key.dim: {key.dim()} and value.dim: {value.dim()} instead."
        )
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{attn_mask.dtype} and query.dtype: {query.dtype} instead."
        )


def _refuse_lines(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor, dropout_p: float, enable_gqa: bool
) -> None:
    """Raise the error of the CPU's fused kernel for a mask of less than two dimensions with a causal one."""
    needs_gradient = attn_mask.requires_grad and torch.is_grad_enabled()
    if attn_mask.dim() < 2 and dropout_p == 0 and not needs_gradient and _fits(query, key, value, enable_gqa):
        attn_mask.size(-2)


def _fits(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    # PyTorch's own meta kernel describes the fused operator for batches of heads alone. Everything unusual, wrong
    # arguments among it, goes to the composition, which has the messages for it.
    return (
        query.dim() == key.dim() == value.dim() == 4
        and query.dtype is key.dtype is value.dtype
        and query.dtype.is_floating_point
        and query.numel() > 0
        and key.numel() > 0
        and query.shape[0] == key.shape[0] == value.shape[0]
        and key.shape[1] == value.shape[1]
        and (query.shape[1] % key.shape[1] == 0 if enable_gqa else query.shape[1] == key.shape[1])
        and query.shape[3] == key.shape[3]
        and key.shape[2] == value.shape[2]
    )


def _takes_mask(query: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool) -> bool:
    if attn_mask is None:
        return True
    if not is_causal:
        return attn_mask.dtype in (torch.bool, query.dtype) and _spreads(attn_mask, query, value)
    # A mask beside the causal one: before 2.14 the CPU's fused kernel takes both, and its composition neither.
    needs_gradient = attn_mask.requires_grad and torch.is_grad_enabled()
    return dropout_p == 0 and query.shape[3] == value.shape[3] and attn_mask.dim() in (2, 4) and not needs_gradient


def _spreads(attn_mask: Tensor, query: Tensor, value: Tensor) -> bool:
    sizes = (value.shape[2], query.shape[2], query.shape[1], query.shape[0])
    return attn_mask.dim() <= 4 and all(
        size in (1, wanted) for size, wanted in zip(reversed(attn_mask.shape), sizes, strict=False)
    )


_record = recorder("aten::_scaled_dot_product_fused_attention_overrideable")


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    *rest: object,
    **options: object,
) -> object:
    """Record attention as one operation. Without dropout it draws nothing, which is a plan of its own: as an integer,
    the rate is no number that may change.
    """
    return _record(query, key, value, attn_bias, dropout_p or 0, *rest, **options)


KERNELS = {"_scaled_dot_product_fused_attention_overrideable": fused_attention}

_TWICE = "_scaled_dot_product_fused_attention_overrideable_backward"
_backward: Any = getattr(aten, _TWICE).default


def attention_backward(
    grad_out: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    grad_input_mask: list[bool],
    *rest: Any,
    scale: float | None = None,
) -> object:
    """Return the gradients of attention, which can be differentiated again: then they are composed of smaller
    operators.
    """
    if grad_out is None:  # autograd's zero: nothing after the call depends on its result
        return None, None, None, None
    operands: list[Any] = [grad_out, query, key, value, attn_bias]
    if not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands)):
        with private.below_autograd():
            return _backward(*operands, grad_input_mask, *rest, scale=scale)
    is_wanted = [True, True, True, attn_bias is not None and grad_input_mask[3]]
    # Aliases, so that nothing is counted that one operand owes to another.
    aliases: list[Any] = [x if x is None else x.view_as(x) if x.requires_grad else x.detach() for x in operands[1:]]
    inputs = [
        x if x.requires_grad else x.requires_grad_()
        for x, w in zip(aliases, is_wanted, strict=True)
        if w and x is not None
    ]
    heads = query.shape[1] // key.shape[1]  # of queries, for each one of keys and values
    spread = [x.repeat_interleave(heads, dim=1) if heads > 1 and x is not None else x for x in (key, value)]
    factors = _factors_of_dropout([grad_out, query, *spread, attn_bias], rest, scale)
    aliases[1:3] = (x.repeat_interleave(heads, dim=1) if heads > 1 else x for x in aliases[1:3])
    result = _composed(aliases, factors, rest[7], scale)
    gradients = torch.autograd.grad(result, inputs, grad_out, create_graph=True)
    return *gradients, *(() if is_wanted[3] else (None,))


def _composed(operands: list[Any], factors: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
    query, key, value, bias = operands
    scores = query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.mT
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    if bias is not None:
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype is torch.bool else scores + bias
    weights = aten._safe_softmax(scores, -1)
    result: Tensor = (weights if factors is None else weights * factors) @ value
    return result


def _factors_of_dropout(operands: list[Any], rest: tuple[Any, ...], scale: float | None) -> Tensor | None:
    """Return the factor of each weight under dropout: 0 for a dropped weight."""
    dropout_p = rest[6]
    if not dropout_p:
        return None
    query, key, bias = (x if x is None else x.detach() for x in (operands[1], operands[2], operands[4]))
    assert query is not None and key is not None
    # The weights after dropout are the gradient of values whose features are the rows, given one feature for each row.
    rows = torch.eye(query.shape[-2], dtype=query.dtype, device=query.device).expand(*query.shape[:-1], -1)
    values = query.new_zeros(*key.shape[:-1], query.shape[-2])
    arguments = rows, query, key, values, bias, [False, False, True, False], torch.zeros_like(rows), *rest[1:]
    with torch.no_grad():
        dropped = _backward(*arguments, scale=scale)[2].mT
    return (dropped != 0).to(query.dtype) * (1 / (1 - dropout_p) if dropout_p < 1 else 0.0)


def register_attention() -> list[torch.library.Library]:
    """Replace PyTorch's composition, which reads a C++ table that Python cannot extend."""
    libraries = []
    for dispatch_key in ("AutogradPrivateUse1", "PrivateUse1"):
        library = torch.library.Library("aten", "IMPL", dispatch_key)
        library.impl("scaled_dot_product_attention", scaled_dot_product_attention, dispatch_key)
        libraries.append(library)
    libraries[0].impl(_TWICE, attention_backward, "AutogradPrivateUse1")
    if not private.has_kernel(_backward.name(), "Meta"):  # PyTorch 2.11, where nothing traced could have its gradient
        libraries.append(torch.library.Library("aten", "IMPL", "Meta"))
        libraries[-1].impl(_TWICE, missing_meta_kernels.attention_backward, "Meta")
    return libraries
