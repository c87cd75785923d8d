"""Bodies with 64-bit numbers in programs of JAX without: values and transforms beside the same with 64 bits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.interop import wide_calls


def body(x: Any, n: Any) -> list[Any]:
    # A third in float64; the place of the largest, an int64 that XLA's lowering counts with.
    third = x.astype(np.float64) / 3
    most = jnp.argmax(x).astype(np.int64) + (1 << 40) * n.astype(np.int64)
    return [(third * third * third).astype(np.float32), (most % 1000).astype(np.int32)]


X, N = jnp.array([0.3, 2.0, -1.0], np.float32), jnp.array(3, np.int32)


def called(x: Any, n: Any = N) -> list[Any]:
    return wide_calls.call(wide_calls.traced(body, [x, n]), [x, n])


def expected(function: Any, *arrays: Any) -> Any:
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, function(*arrays))


@pytest.mark.parametrize("compiled", [False, True])
def test_its_numbers_have_64_bits(compiled: bool) -> None:
    found = (jax.jit(called) if compiled else called)(X)
    for one, each in zip(found, expected(body, X, N), strict=True):
        np.testing.assert_array_equal(one, each)
    assert int(found[1]) == (1 + (3 << 40)) % 1000


def test_transforms() -> None:
    rows = jnp.stack([X, X * 2, -X])
    for one, each in zip(jax.vmap(called)(rows), expected(jax.vmap(lambda x: body(x, N)), rows), strict=True):
        np.testing.assert_array_equal(one, each)
    of_both = jax.vmap(called, in_axes=(None, 0))(X, jnp.arange(4))
    assert of_both[0].shape == (4, 3)
    assert of_both[1].tolist() == [(1 + (n << 40)) % 1000 for n in range(4)]

    def total(x: Any) -> Any:
        return jnp.sum(called(x)[0])

    exact = np.asarray(X) ** 2 / 9
    np.testing.assert_allclose(jax.jit(jax.grad(total))(X), exact, rtol=1e-6)
    np.testing.assert_allclose(jax.jvp(total, (X,), (jnp.ones(3),))[1], exact.sum(), rtol=1e-6)
    np.testing.assert_allclose(jnp.diagonal(jax.hessian(total)(X)), 2 * np.asarray(X) / 9, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(total))(rows), np.asarray(rows) ** 2 / 9, rtol=1e-6)
