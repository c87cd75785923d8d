"""Comparisons of values that cannot be subnormal stay as they are; so do extremes that arithmetic alone reads."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.compile.exact_comparisons import compare_exactly


def changed(function: Callable[..., Any], *operands: Any) -> str:
    lowered = jax.jit(function).lower(*operands)
    module = lowered.compiler_ir("stablehlo")
    compare_exactly(module)
    assert module.operation.verify()
    return str(module)


def test_what_arithmetic_computes_is_compared_as_it_is() -> None:
    x = jnp.ones(4)
    assert "bitcast" not in changed(lambda x, y: jnp.maximum(x * y + 2.0, 0), x, x)
    assert "bitcast" not in changed(lambda x: (x + 3.0) > 0, x)
    assert "bitcast" not in changed(lambda x: jax.nn.softmax(x @ x.T) + jax.nn.softmax(x * 0.125), jnp.ones((4, 4)))
    assert "bitcast" in changed(lambda x: (x * 1.0) > 0, x), "XLA takes the product out"
    assert "bitcast" not in changed(lambda x: (x > 0) | (x != x), jnp.ones(4, jnp.float16))
    assert "bitcast" not in changed(lambda x: x != x, x)


def test_what_arithmetic_reads_is_computed_as_it_is() -> None:
    x = jnp.ones((4, 4))
    assert "bitcast" not in changed(lambda x: jnp.exp(x - x.max(1, keepdims=True)), x)
    assert "bitcast" not in changed(lambda x, y: jnp.maximum(x, y).T * 3.0 + jnp.clip(x, 0.5, y) / 7.0, x, x)
    assert "bitcast" in changed(lambda x: (x.max(1), x.max(1) * 3.0), x), "its bits are a result"
    assert "bitcast" in changed(lambda x: x.max(1) * 1.0, x), "XLA takes the product out"
    assert "bitcast" in changed(lambda x: jnp.maximum(x, x.T) > 0, x), "the comparison sees them"
    with jax.enable_x64(True):
        wide = jax.ShapeDtypeStruct((), np.float64)
        assert "bitcast" not in changed(lambda x: x.astype(np.float32) * np.float32(3), wide)
        assert "bitcast" in changed(lambda x: x.astype(np.float32), wide)


def test_sums_and_moves_of_what_arithmetic_computes_are_compared_as_they_are() -> None:
    x = jnp.ones((4, 4))

    def blocks(x: jax.Array) -> jax.Array:
        """A function that is called with its own result, by way of another."""
        for _ in range(3):
            x = jax.nn.relu(x @ x + jax.nn.relu(x))
        return x

    assert changed(blocks, x).count("bitcast") == changed(jax.nn.relu, x).count("bitcast"), "the first one alone"
    assert "bitcast" not in changed(lambda x: jnp.exp(x).sum(1) > 0, x)
    assert "bitcast" not in changed(lambda x: jnp.pad(jnp.concatenate([x + 3.0, x * x]), 1)[1:, ::-1] > 0, x)
    assert "bitcast" not in changed(lambda x: jnp.zeros(9).at[jnp.arange(4)].add(x[0]) > 0, x)
    assert "bitcast" in changed(lambda x: x[:1].sum(0) > 0, x), "a sum of one element is that element"
    assert "bitcast" in changed(lambda x: jnp.zeros(9).at[jnp.arange(4)].set(x[0]) > 0, x)
