"""Attention in tiles: sums over tiles are those over whole rows, whatever the tiles are."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.lowering.sequences.tiled_attention import Tiles, Tiling, backward, forward


class Causal(Tiles):
    """Scores times a number that has a gradient, of columns up to the row's own."""

    def __init__(self, operands: Sequence[jax.Array], tiling: Tiling, factor: jax.Array) -> None:
        super().__init__(*operands, 0.5, tiling)
        self.factor = factor

    def changed(self, row: Any, column: Any, plain: jax.Array) -> jax.Array:
        return plain * self.factor

    def masked(self, row: Any, column: Any) -> jax.Array:
        columns = self.column_numbers(column)
        return (columns <= self.row_numbers(row)[:, None]) & (columns < self.keys)

    def differentiated(self) -> Sequence[jax.Array]:
        return (self.factor,)

    def changed_gradient(self, row: Any, column: Any, plain: jax.Array, grad: jax.Array) -> Any:
        return grad * self.factor, (jnp.sum(grad * plain),)


def whole(query: jax.Array, key: jax.Array, value: jax.Array, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
    heads = query.shape[1] // key.shape[1]
    key, value = (jnp.repeat(each, heads, 1) for each in (key, value))
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) * 0.5 * factor
    seen = np.arange(key.shape[2]) <= np.arange(query.shape[2])[:, None]
    scores = jnp.where(seen, scores, -jnp.inf)
    return jax.nn.softmax(scores) @ value, jax.nn.logsumexp(scores, -1)


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (5, 3), (21, 2), (1, 25)])
def test_output_and_gradients_are_those_of_whole_rows(rows: int, columns: int) -> None:
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        operands = [jnp.asarray(random.normal(size=size)) for size in ((2, 4, 21, 6), (2, 2, 25, 6), (2, 2, 25, 5))]
        factor = jnp.asarray(1.5)
        counts = [-(-size // side) for size, side in ((21, rows), (25, columns))]
        order = jnp.broadcast_to(jnp.arange(counts[1], dtype=np.int32), counts)
        tiles = Causal(operands, Tiling(rows, columns, order, jnp.full(counts[0], counts[1], np.int32)), factor)
        output, logarithm, largest = forward(tiles)
        expected, back = jax.vjp(whole, *operands, factor)
        grads = jnp.asarray(random.normal(size=output.shape)), jnp.asarray(random.normal(size=logarithm.shape))
        found = backward(tiles, output, logarithm, *grads)
        np.testing.assert_allclose(output, expected[0], rtol=1e-12)
        np.testing.assert_allclose(logarithm, expected[1], rtol=1e-12)
        assert largest.shape == logarithm.shape and bool(jnp.all(largest <= logarithm + 1e-12))
        for ours, theirs in zip([*found[:3], *found[3]], back(grads), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
