"""Attention of packed sequences: calls that differ in the longest sequence alone are one call, and one program."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from ..recording_kernel import recorder

_forward = recorder("aten::_flash_attention_forward")
_backward = recorder("aten::_flash_attention_backward")


def flash_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    num_splits: int | None = None,
    **options: object,
) -> Any:
    """Return the output, the logarithms of the sums, and three tensors that only CUDA's kernel fills.

    `max_q`, `max_k` and `num_splits` choose among CUDA's kernels; nothing here depends on them.
    """
    _refuse(query, key, value, dropout_p, return_debug_mask)
    return _forward(query, key, value, cum_seq_q, cum_seq_k, 0, 0, 0.0, is_causal, False, **options)


def flash_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    **options: object,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of query, key and value."""
    _refuse(query, key, value, dropout_p, False)
    operands = grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k
    return _backward(*operands, 0, 0, 0.0, is_causal, rng_state, unused, **options)


def flash_attention_into(out: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Write the output into `out`, and return the logarithms of the sums."""
    output, logarithms, *_ = flash_attention_forward(*arguments, **options)
    out.copy_(output)
    return logarithms  # type: ignore[no-any-return]


def _refuse(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, return_debug_mask: bool) -> None:
    if dropout_p or return_debug_mask:
        asked = f"dropout_p={dropout_p}" if dropout_p else "return_debug_mask=True"
        raise NotImplementedError(
            f"_flash_attention_forward: {asked} is not supported on xla. Use dropout_p=0.0 and "
            "return_debug_mask=False, or torch.nn.functional.scaled_dot_product_attention, which has dropout."
        )
    heads = query.shape[-2], key.shape[-2], value.shape[-2]
    if heads[0] % heads[1] or heads[1] != heads[2]:
        raise RuntimeError(
            f"_flash_attention_forward: {heads[0]} heads of queries cannot share {heads[1]} heads of keys and "
            f"{heads[2]} of values. Give keys and values the same number of heads, a divisor of the query's."
        )


def choosing_packed(original: Callable[..., SDPBackend]) -> Callable[..., SDPBackend]:
    """Wrap PyTorch's choice of a kernel for attention of jagged tensors: on `xla` it is the one above.

    PyTorch asks for GPUs, and takes elsewhere the strided layout of nested tensors. It would pass over a
    `NotImplementedError`, and attend as if the tensors were not nested.
    """

    @functools.wraps(original)
    def select(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout: float, *rest: object
    ) -> SDPBackend:
        if query.device.type != "xla":
            return original(query, key, value, attn_mask, dropout, *rest)
        if dropout:
            raise RuntimeError(
                f"scaled_dot_product_attention: dropout_p={dropout} is not supported for jagged nested tensors on xla. "
                "Use dropout_p=0.0, or attend to padded tensors: torch.nested.to_padded_tensor."
            )
        return SDPBackend.FLASH_ATTENTION

    return select


def unpadded(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap PyTorch's padding of heads to a multiple of eight, which GPUs need and jagged tensors do not have."""

    @functools.wraps(original)
    def pad(tensor: Tensor, *args: object) -> Tensor:
        return tensor if tensor.device.type == "xla" else original(tensor, *args)

    return pad


KERNELS: dict[str, Callable[..., object]] = {
    "_flash_attention_forward": flash_attention_forward,
    "_flash_attention_backward": flash_attention_backward,
    "_flash_attention_forward_no_dropout_inplace": flash_attention_into,
}
