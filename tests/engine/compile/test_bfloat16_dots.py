"""Products of bfloat16 that XLA:CPU has no kernel for."""

import jax
import jax.numpy as jnp
import pytest

from torch_xla._engine.compile import bfloat16_dots

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="what XLA:CPU does with bfloat16")


def test_products_are_found_in_what_xla_made_of_a_program() -> None:
    def product(left: jax.Array, right: jax.Array) -> jax.Array:
        left = jnp.swapaxes(left, 1, 2)[:, None]
        return jax.lax.dot_general(left, right, (((3,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32)

    def looped(left: jax.Array, right: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, total: total + product(left, right), jnp.zeros((5, 1, 4, 3)))

    for function in (product, looped):
        left, right = jnp.ones((5, 16, 4), jnp.bfloat16), jnp.ones((5, 3, 16), jnp.bfloat16)
        executable = jax.jit(function).lower(left, right).compile()
        found = bfloat16_dots.not_run(executable.as_text())
        if not found:
            pytest.skip("this processor has no instructions for bfloat16, and XLA widens all of it")
        assert len(found) == 1
        with pytest.raises(jax.errors.JaxRuntimeError, match="Unsupported element type"):
            jax.block_until_ready(executable(left, right))
