"""A linear function with a transpose of its own, under JAX's transforms."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.interop import linear_maps


class Scaled:
    """Multiplies by the square of the held array. The transpose multiplies by ten times the square, as a mark."""

    def apply(self, held: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
        return [held[0] ** 2 * given[0]]

    def transpose(self, held: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
        return [10 * held[0] ** 2 * given[0]]


SCALED = Scaled()
X, Y = jnp.array([2.0, -3.0]), jnp.array([1.0, 4.0])


def scaled(x: jax.Array, y: jax.Array) -> jax.Array:
    return linear_maps.call(SCALED, [x], [y], [y])[0]


def test_its_derivatives_are_its_own() -> None:
    assert scaled(X, Y).tolist() == jax.jit(scaled)(X, Y).tolist() == [4.0, 36.0]
    ones = jnp.ones(2)
    assert jax.jvp(scaled, (X, Y), (ones, 2 * ones))[1].tolist() == [8.0 + 4.0, 18.0 - 24.0]
    assert jax.vjp(lambda y: scaled(X, y), Y)[1](ones)[0].tolist() == [40.0, 90.0]
    assert jax.vjp(lambda x: scaled(x, Y), X)[1](ones)[0].tolist() == [4.0, -24.0]  # by the operations themselves


def test_a_batch_of_either_is_computed() -> None:
    for axes in ((0, 0), (0, None), (None, 0)):
        x, y = (jnp.stack([each, 2 * each]) if axis == 0 else each for each, axis in zip((X, Y), axes, strict=True))
        np.testing.assert_allclose(jax.vmap(scaled, axes)(x, y), x**2 * y)

        def total(y: jax.Array, x: jax.Array = x, axes: object = axes) -> jax.Array:
            return jnp.sum(jax.vmap(scaled, axes)(x, y))

        expected = 10 * jax.grad(lambda y, x=x: jnp.sum(jnp.broadcast_to(x**2 * y, (2, 2))))(y)
        np.testing.assert_allclose(jax.jit(jax.grad(total))(y), expected)
