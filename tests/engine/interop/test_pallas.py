"""Kernels written in Pallas run anywhere, slowly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas

from torch_xla._engine.interop.pallas import Interpreted


def scaled(x: jax.Array, y: jax.Array) -> jax.Array:
    def kernel(x_ref, y_ref, out):  # type: ignore[no-untyped-def]
        out[...] = x_ref[...] * 2 + y_ref[...]

    called: jax.Array = pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)
    return called


def test_a_kernel_gives_what_it_says() -> None:
    x, y = np.arange(8.0, dtype=np.float32).reshape(1, 8), np.ones((1, 8), np.float32)
    np.testing.assert_array_equal(jax.jit(Interpreted(scaled))(x, y), x * 2 + y)


def test_the_mode_ends_with_the_call() -> None:
    def fails(x: jax.Array) -> jax.Array:
        raise KeyError

    with pytest.raises(KeyError):
        Interpreted(fails)(jnp.ones(1))
    with pytest.raises(ValueError, match="(?i)interpret"):
        jax.jit(scaled).lower(jnp.ones((1, 8)), jnp.ones((1, 8)))  # not on the CPU
