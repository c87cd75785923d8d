"""Attention to keys and values on pages, as inference servers store them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..machinery.registry import lowers
from ..machinery.xla_op_schemas import define
from .blockwise_attention import MASK_VALUE, like_query

# The number of tokens of a ragged batch that are processed at a time.
_TOKENS = 32


def paged_attention(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    soft_cap: object,
) -> jax.Array:
    """Attend with one query of each sequence to the keys on its pages.

    Sizes: q [batch, heads, width], pages [key heads, pages, page size, width], lengths [batch], indices [batch, pages].
    """
    ones = jnp.ones(q.shape[0], np.int32)
    return several_queries(q[:, None], k_pages, v_pages, lengths, page_indices, ones, soft_cap)[:, 0]


def several_queries(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    effective_q_lens: jax.Array,
    soft_cap: Any,
) -> jax.Array:
    """Attend with the last queries of each sequence, q [batch, queries, heads, width], to the keys up to their
    position.

    Of the queries of a sequence the first `effective_q_lens` count; the last of these is at its last key.
    """
    batch, queries, heads, width = q.shape
    key_heads = k_pages.shape[0]
    keys, values = (_of_sequences(pages, page_indices) for pages in (k_pages, v_pages))
    grouped = q.reshape(batch, queries, key_heads, heads // key_heads, width)
    scores = jnp.einsum("bqhgd,bhkd->bhgqk", grouped, keys, preferred_element_type=np.float32)
    if soft_cap is not None:
        scores = jnp.tanh(scores / soft_cap) * soft_cap
    place = jnp.arange(scores.shape[-1])
    row = (lengths - effective_q_lens)[:, None] + jnp.arange(queries)
    counts = (place <= row[..., None]) & (place < lengths[:, None, None])
    weights = jax.nn.softmax(scores + jnp.where(counts[:, None, None], 0.0, MASK_VALUE), axis=-1)
    result = jnp.einsum("bhgqk,bhkd->bqhgd", weights.astype(values.dtype), values)
    return result.reshape(q.shape).astype(q.dtype)


def _of_sequences(pages: jax.Array, indices: jax.Array) -> jax.Array:
    """Return the pages of each sequence one after the other: [batch, key heads, keys, width]."""
    taken = jnp.moveaxis(pages[:, indices], 0, 1)
    return taken.reshape(*taken.shape[:2], -1, taken.shape[-1])


def ragged(
    q: jax.Array,
    kv_pages: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    scale: float,
    window: int | None,
    soft_cap: Any,
    mask_value: Any,
    k_scale: Any,
    v_scale: Any,
) -> jax.Array:
    """Attend with the tokens of all sequences, one behind the other, to their own keys; zeros behind the last sequence.

    Sizes: q [tokens, heads, width], kv_pages [pages, page size, 2 × key heads, width] with keys and values in turn,
    kv_lens [sequences], page_indices [sequences, pages], cu_q_lens [sequences + 1], num_seqs [1].
    """
    tokens, heads, width = q.shape
    both = kv_pages.shape[2]
    mask_value = MASK_VALUE if mask_value is None else mask_value
    number = num_seqs.reshape(())
    count = cu_q_lens.shape[0] - 1
    sequence = jnp.searchsorted(cu_q_lens[1:], jnp.arange(tokens), side="right")
    is_real = jnp.arange(tokens) < cu_q_lens[number]
    sequence = jnp.clip(sequence, 0, count - 1)
    row = kv_lens[sequence] - cu_q_lens[sequence + 1] + jnp.arange(tokens)

    def of_one(token: tuple[jax.Array, ...]) -> jax.Array:
        query, own, at = token
        taken = kv_pages[page_indices[own]].reshape(-1, both, width)
        keys, values = (_scaled(taken[:, first::2], by, q.dtype) for first, by in ((0, k_scale), (1, v_scale)))
        grouped = query.reshape(both // 2, -1, width)
        scores = jnp.einsum("hgd,khd->hgk", grouped, keys, preferred_element_type=np.float32) * scale
        place = jnp.arange(taken.shape[0])
        if soft_cap is not None:
            scores = jnp.tanh(scores / soft_cap) * soft_cap
        hidden = place > at
        if window is not None:
            hidden = hidden | (place <= at - window)
        # Keys after the sequence's own are on pages that other sequences may use, so they are excluded entirely.
        scores = jnp.where(place < kv_lens[own], scores + jnp.where(hidden, mask_value, 0.0), -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
        return jnp.einsum("hgk,khd->hgd", weights, values).reshape(heads, width).astype(q.dtype)

    found = lax.map(of_one, (q, sequence, row), batch_size=min(_TOKENS, tokens))
    return jnp.where(is_real[:, None, None], found, jnp.zeros((), q.dtype))


def _scaled(array: jax.Array, by: float | None, dtype: np.dtype) -> jax.Array:
    return array if by is None else (array.astype(np.float32) * by).astype(dtype)


PAGED = define(
    "paged_attention(Tensor q, Tensor k_pages, Tensor v_pages, Tensor lengths, Tensor page_indices, "
    "int pages_per_compute_block, str? megacore_mode=None, float? attn_logits_soft_cap=None) -> Tensor",
    like_query,
)
SEVERAL = define(
    "multi_queries_paged_attention(Tensor q, Tensor k_pages, Tensor v_pages, Tensor lengths, Tensor page_indices, "
    "Tensor effective_q_lens, int num_kv_pages_per_compute_block, int num_queries_per_compute_block, "
    "bool use_kernel, float? attn_logits_soft_cap=None) -> Tensor",
    like_query,
)
RAGGED = define(
    "ragged_paged_attention(Tensor q, Tensor kv_pages, Tensor kv_lens, Tensor page_indices, Tensor cu_q_lens, "
    "Tensor num_seqs, float sm_scale=1., int? sliding_window=None, float? soft_cap=None, float? mask_value=None, "
    "float? k_scale=None, float? v_scale=None, bool use_kernel=True, int? num_kv_pages_per_block=None, "
    "int? num_queries_per_block=None, int? vmem_limit_bytes=None) -> Tensor",
    like_query,
)


@lowers(PAGED)
def paged_rule(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> jax.Array:
    """Attend with one query of each sequence."""
    return paged_attention(q, k_pages, v_pages, lengths, page_indices, attn_logits_soft_cap)


@lowers(SEVERAL)
def several_rule(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    effective_q_lens: jax.Array,
    num_kv_pages_per_compute_block: int,
    num_queries_per_compute_block: int,
    use_kernel: bool,
    attn_logits_soft_cap: float | None = None,
) -> jax.Array:
    """Attend with several queries of each sequence."""
    return several_queries(q, k_pages, v_pages, lengths, page_indices, effective_q_lens, attn_logits_soft_cap)


@lowers(RAGGED)
def ragged_rule(
    q: jax.Array,
    kv_pages: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: object = None,
    use_kernel: bool = True,
    num_kv_pages_per_block: object = None,
    num_queries_per_block: object = None,
    vmem_limit_bytes: object = None,
) -> jax.Array:
    """Attend within a batch of sequences of unequal lengths."""
    return ragged(
        q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, sm_scale, sliding_window, soft_cap, mask_value,
        k_scale, v_scale,
    )  # fmt: skip
