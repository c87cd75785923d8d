"""Attention to keys and values in pages of a cache, as servers store them."""

import torch
from torch import Tensor

from .._engine.lowering.fused_kernels import paged_attention as pages
from ..core.xla_builder import call_jax


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lengths: Tensor,
    page_indices: Tensor,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """Compute the attention of one query of each sequence to keys and values in pages of a cache.

    Sizes: q [batch, heads, width], pages [key heads, pages, page size, width], `lengths` [batch] (keys of each
    sequence), `page_indices` [batch, pages of a sequence]. The caller scales `q`. `pages_per_compute_block` and
    `megacore_mode` are hints for TPUs and have no effect here.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import paged_attention
    >>> pages = torch.ones(1, 4, 2, 8, device="xla")
    >>> indices = torch.tensor([[0, 1], [3, 2]], device="xla")
    >>> lengths = torch.tensor([3, 4], device="xla")
    >>> paged_attention(torch.ones(2, 2, 8, device="xla"), pages, pages, lengths, indices, 1).shape
    torch.Size([2, 2, 8])
    """
    cap = None if attn_logits_soft_cap is None else float(attn_logits_soft_cap)
    arguments = (q, k_pages, v_pages, lengths, page_indices, cap)
    result: Tensor = call_jax(pages.paged_attention, arguments, {}, "paged_attention")
    return result


def multi_queries_paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lengths: Tensor,
    page_indices: Tensor,
    effective_q_lens: Tensor,
    num_kv_pages_per_compute_block: int,
    num_queries_per_compute_block: int,
    use_kernel: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """Compute the attention of several queries of each sequence to keys and values in pages of a cache.

    The last query of a sequence is at the position of its last key. Sizes: q [batch, queries, heads, width], pages
    [key heads, pages, page size, width], `lengths` [batch] (keys of each sequence), `page_indices`
    [batch, pages of a sequence], `effective_q_lens` [batch] (valid queries of each sequence). The caller scales `q`.
    The block sizes and `use_kernel` are hints for TPUs and have no effect here.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import multi_queries_paged_attention
    >>> pages = torch.ones(1, 4, 2, 8, device="xla")
    >>> indices, lengths = torch.tensor([[0, 1]], device="xla"), torch.tensor([4], device="xla")
    >>> q = torch.ones(1, 3, 2, 8, device="xla")
    >>> multi_queries_paged_attention(q, pages, pages, lengths, indices, torch.tensor([3], device="xla"), 1, 1).shape
    torch.Size([1, 3, 2, 8])
    """
    result: Tensor = torch.ops.xla.multi_queries_paged_attention(
        q, k_pages, v_pages, lengths, page_indices, effective_q_lens, num_kv_pages_per_compute_block,
        num_queries_per_compute_block, use_kernel, attn_logits_soft_cap,
    )  # fmt: skip
    return result


def ragged_paged_attention(
    q: Tensor,
    kv_pages: Tensor,
    kv_lens: Tensor,
    page_indices: Tensor,
    cu_q_lens: Tensor,
    num_seqs: Tensor,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    use_kernel: bool = True,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> Tensor:
    """Compute the attention of concatenated sequences of unequal lengths to keys and values in pages of a cache.

    Sizes: q [tokens, heads, width]; kv_pages [pages, page size, 2 × key heads, width], keys and values in turn; kv_lens
    [sequences]; page_indices [sequences, pages]; cu_q_lens [sequences + 1], the offset of each sequence's first token;
    num_seqs [1], the number of sequences. The last token of a sequence is at the position of its last key; tokens after
    the last sequence become zeros. With `sliding_window` a token attends to this number of keys. `k_scale` and
    `v_scale` multiply quantised keys and values. `use_kernel` and the arguments after it are hints for TPUs and have no
    effect here.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import ragged_paged_attention
    >>> def ints(*values):
    ...     return torch.tensor(values, dtype=torch.int32, device="xla")
    >>> q, pages = torch.ones(4, 2, 8, device="xla"), torch.ones(3, 2, 2, 8, device="xla")
    >>> indices = ints(0, 1, 2, 0).reshape(2, 2)
    >>> ragged_paged_attention(q, pages, ints(3, 2), indices, ints(0, 3, 4), ints(2)).shape
    torch.Size([4, 2, 8])
    """
    result: Tensor = torch.ops.xla.ragged_paged_attention(
        q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, sm_scale, sliding_window, soft_cap, mask_value,
        k_scale, v_scale, use_kernel, num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes,
    )  # fmt: skip
    return result


# The operators compute the same on both devices.
paged_attention_xla = paged_attention_non_xla = torch.ops.xla.paged_attention
multi_queries_paged_attention_xla = torch.ops.xla.multi_queries_paged_attention
multi_queries_paged_attention_non_xla = torch.ops.xla.multi_queries_paged_attention
ragged_paged_attention_xla = ragged_paged_attention_non_xla = torch.ops.xla.ragged_paged_attention
