"""Attention to keys and values on pages, against a loop over sequences and tokens."""

import jax
import numpy as np
import pytest

from torch_xla._engine.lowering.fused_kernels.paged_attention import paged_attention, ragged, several_queries

RANDOM = np.random.default_rng(0)
KEYS, VALUES = (RANDOM.standard_normal((2, 6, 2, 8), np.float32) for _ in range(2))  # heads, pages, page, width
INDICES, LENGTHS = np.array([[0, 1], [5, 2], [3, 3]]), np.array([1, 4, 3])


def attended(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray, cap: float | None, scale: float = 1.0
) -> np.ndarray:
    """Attend from one token's query [heads, width] to all keys and values [key heads, keys, width]."""
    groups = query.shape[0] // keys.shape[0]
    keys, values = (each.repeat(groups, 0) for each in (keys, values))
    scores = np.einsum("hd,hkd->hk", query, keys) * scale
    scores = scores if cap is None else np.tanh(scores / cap) * cap
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hk,hkd->hd", weights / weights.sum(-1, keepdims=True), values)


def on_pages(pages: np.ndarray, row: int, count: int) -> np.ndarray:
    return pages[:, INDICES[row]].reshape(2, -1, 8)[:, :count]


@pytest.mark.parametrize("cap", [None, 2.0])
def test_one_query_of_each_sequence(cap: float | None) -> None:
    q = RANDOM.standard_normal((3, 4, 8), np.float32)
    found = jax.jit(paged_attention, static_argnums=5)(q, KEYS, VALUES, LENGTHS, INDICES, cap)
    for row, count in enumerate(LENGTHS):
        expected = attended(q[row], on_pages(KEYS, row, count), on_pages(VALUES, row, count), cap)
        np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-5)


def test_several_queries_end_at_their_last_key() -> None:
    q, effective = RANDOM.standard_normal((3, 2, 4, 8), np.float32), np.array([1, 2, 2])
    found = jax.jit(several_queries, static_argnums=6)(q, KEYS, VALUES, LENGTHS, INDICES, effective, None)
    for row, count in enumerate(LENGTHS):
        for query in range(effective[row]):
            seen = count - effective[row] + query + 1
            expected = attended(q[row, query], on_pages(KEYS, row, seen), on_pages(VALUES, row, seen), None)
            np.testing.assert_allclose(found[row, query], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 2])
def test_tokens_of_unequal_sequences(window: int | None) -> None:
    starts = np.array([0, 1, 4, 6])  # the last sequence counts for nothing: two are given
    q = RANDOM.standard_normal((6, 4, 8), np.float32)
    pages = np.stack([KEYS, VALUES], 1).reshape(4, 6, 2, 8).transpose(1, 2, 0, 3)  # keys and values in turn
    given = (q, pages, LENGTHS, INDICES, starts, np.array([2]))
    found = np.asarray(jax.jit(lambda *arrays: ragged(*arrays, 0.5, window, None, None, None, None))(*given))
    for row in range(2):
        for token in range(starts[row], starts[row + 1]):
            seen = LENGTHS[row] - (starts[row + 1] - token) + 1
            first = 0 if window is None else max(0, seen - window)
            keys, values = (on_pages(each, row, seen)[:, first:] for each in (KEYS, VALUES))
            np.testing.assert_allclose(found[token], attended(q[token], keys, values, None, 0.5), rtol=1e-4, atol=1e-5)
    assert not found[4:].any()


def test_scaled_keys_and_values() -> None:
    q = RANDOM.standard_normal((1, 4, 8), np.float32)
    pages = np.stack([KEYS, VALUES], 1).reshape(4, 6, 2, 8).transpose(1, 2, 0, 3)
    given = (q, pages, LENGTHS[:1], INDICES[:1], np.array([0, 1]), np.array([1]))
    found = jax.jit(lambda *arrays: ragged(*arrays, 1.0, None, 3.0, None, 0.5, 2.0))(*given)
    expected = attended(q[0], on_pages(KEYS, 0, 1) * 0.5, on_pages(VALUES, 0, 1) * 2, 3.0)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)
