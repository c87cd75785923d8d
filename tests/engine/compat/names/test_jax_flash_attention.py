"""JAX's kernel with its residuals is the public one."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pallas_tpu
from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention as public

from torch_xla._engine.compat.names.jax_flash_attention import flash_attention, flash_attention_gradients


def test_outputs_and_gradients_are_those_of_the_public_function() -> None:
    query, key, value, grad = (jax.random.normal(jax.random.key(seed), (1, 1, 256, 64)) for seed in range(4))
    segments = [jnp.arange(256, dtype=np.int32)[None] // 100] * 2
    with pallas_tpu.force_tpu_interpret_mode(True):
        output, total, largest = flash_attention(query, key, value, segments, True, 0.5)
        found = flash_attention_gradients(grad, query, key, value, segments, True, 0.5, (output, total, largest))
        expected, pull = jax.vjp(
            lambda *each: public(*each, segment_ids=SegmentIds(*segments), causal=True, sm_scale=0.5), query, key, value
        )
        for one, other in zip((output, *found), (expected, *pull(grad)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
