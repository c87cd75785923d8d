"""Attention block by block, against the whole matrix of scores."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.lowering.fused_kernels import blockwise_attention
from torch_xla._engine.lowering.fused_kernels.blockwise_attention import Scoring, by_blocks, gradients

RANDOM = np.random.default_rng(0)


def operands(length: int, keys: int | None = None, heads: int = 2, key_heads: int = 2) -> list[jax.Array]:
    sizes = ((2, heads, length, 4), (2, key_heads, keys or length, 4), (2, key_heads, keys or length, 3))
    return [jnp.asarray(RANDOM.standard_normal(size, np.float32)) for size in sizes]


def whole(q, k, v, ab, mine, theirs, how: Scoring):  # type: ignore[no-untyped-def]
    """By the definition, in float64."""
    q, k, v = (np.asarray(each, np.float64) for each in (q, k, v))
    k, v = (each.repeat(q.shape[1] // each.shape[1], 1) for each in (k, v))
    scores = (np.einsum("bhqc,bhkc->bhqk", q, k) + (0 if ab is None else np.asarray(ab))) * how.scale
    if how.soft_cap is not None:
        scores = np.tanh(scores / how.soft_cap) * how.soft_cap
    row, column = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
    seen = np.ones(scores.shape, bool)
    if how.causal:
        seen &= column <= row
    if how.window is not None:
        seen &= abs(column - row) <= how.window
    if mine is not None:
        seen &= (np.asarray(mine)[:, :, None] == np.asarray(theirs)[:, None])[:, None]
    scores = np.where(seen, scores, -np.inf)
    most = scores.max(-1)
    exponentials = np.exp(scores - most[..., None])
    sums = exponentials.sum(-1)
    return np.einsum("bhqk,bhkc->bhqc", exponentials / sums[..., None], v), sums, most


SEGMENTS = jnp.asarray(np.arange(8)[None].repeat(2, 0) // 3)
CASES = {
    "plain": (operands(8), None, None, Scoring(False)),
    "causal, scaled": (operands(8), None, None, Scoring(True, 0.5)),
    "capped, in a window": (operands(8), None, None, Scoring(False, 1.0, 2.0, 2)),
    "segments and a bias": (
        operands(8),
        jnp.asarray(RANDOM.standard_normal((2, 2, 8, 8), np.float32)),
        SEGMENTS,
        Scoring(True),
    ),
    "few heads of keys": (operands(8, heads=6, key_heads=2), None, None, Scoring(False, 0.3)),
    "fewer keys": (operands(8, keys=5), None, None, Scoring(False)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [512, 2], ids=["whole", "blocks"])
def test_results_sums_and_largest_scores(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise_attention, "_ROWS", rows)
    given, bias, segments, how = CASES[name]
    found = jax.jit(lambda *qkv: by_blocks(*qkv, bias, segments, segments, how))(*given)
    for ours, theirs in zip(found, whole(*given, bias, segments, segments, how), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_gradients_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise_attention, "_ROWS", 2)
    given, bias, _, how = CASES["segments and a bias"]
    grad = jnp.asarray(RANDOM.standard_normal((2, 2, 8, 3), np.float32))

    def plain(q: jax.Array, k: jax.Array, v: jax.Array, ab: jax.Array) -> jax.Array:
        scores = jnp.einsum("bhqc,bhkc->bhqk", q, k) + ab
        scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), scores, -jnp.inf)
        return jnp.einsum("bhqk,bhkc->bhqc", jax.nn.softmax(scores, -1), v)

    def both(*operands: jax.Array) -> Any:
        return gradients(grad, operands, (None, None), how), jax.vjp(plain, *operands)[1](grad)

    for ours, theirs in zip(*jax.jit(both)(*given, bias), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_length_that_has_no_equal_blocks_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise_attention, "_ROWS", 3)
    given = operands(7)
    found = by_blocks(*given, None, None, None, Scoring(True))
    np.testing.assert_allclose(found[0], whole(*given, None, None, None, Scoring(True))[0], rtol=1e-4, atol=1e-5)
    assert "scan" not in str(jax.make_jaxpr(lambda *qkv: by_blocks(*qkv, None, None, None, Scoring(True)))(*given))
