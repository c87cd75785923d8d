"""The operators of splash attention follow its configuration."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.lowering.fused_kernels import splash_kernel
from torch_xla._engine.lowering.fused_kernels.blockwise_attention import Scoring


@pytest.mark.parametrize(
    ("config", "causal", "cap", "expected"),
    [
        ({}, None, None, Scoring(False)),
        ({"block_q": 512}, True, 2.0, Scoring(True, 1.0, 2.0)),
        ({"attentiontype_local_sliding": True, "slide_window_size": 3}, False, None, Scoring(False, window=3)),
        ({"attentiontype_local_sliding": False, "slide_window_size": 3}, True, None, Scoring(True)),
    ],
)
def test_scoring(config: dict[str, object], causal: bool | None, cap: float | None, expected: Scoring) -> None:
    assert splash_kernel.scoring(json.dumps(config), causal, cap) == expected


@pytest.mark.slow
def test_forward_and_backward_belong_together() -> None:
    random = np.random.default_rng(0)
    q, k, v = (jnp.asarray(random.standard_normal((2, heads, 6, 4), np.float32)) for heads in (4, 2, 2))
    segments = jnp.asarray(np.arange(6)[None].repeat(2, 0) // 2)
    config = json.dumps({"attentiontype_local_sliding": True, "slide_window_size": 1})
    settings = (config, segments, True, 2.0)

    def plain(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        k, v = (jnp.repeat(each, 2, 1) for each in (k, v))
        scores = jnp.tanh(jnp.einsum("bhqc,bhkc->bhqk", q, k) / 2) * 2
        place = jnp.arange(6)
        apart = place[:, None] - place
        seen = (apart >= 0) & (apart <= 1) & (segments[0][:, None] == segments[0])
        return jnp.einsum("bhqk,bhkc->bhqc", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1), v)

    grad = jnp.asarray(random.standard_normal((2, 4, 6, 4), np.float32))

    def both(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        expected, back = jax.vjp(plain, q, k, v)
        return (
            splash_kernel.forward(q, k, v, *settings),
            expected,
            splash_kernel.backward(grad, q, k, v, *settings),
            back(grad),
        )

    (result, sums, most), expected, by_ours, by_theirs = jax.jit(both)(q, k, v)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert sums.shape == most.shape == (2, 4, 6) and (sums >= 1).all() and (sums <= 2.0001).all()
    for ours, theirs in zip(by_ours, by_theirs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
