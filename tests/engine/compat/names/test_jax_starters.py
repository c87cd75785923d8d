"""Compiled programs start on buffers directly, and as JAX starts them where it has more to do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.compat.names import jax_starters


def compiled(function: Callable[[Any], Any]) -> jax.stages.Compiled:
    return jax.jit(function, keep_unused=True).trace(jnp.arange(3.0)).lower().compile()


def test_a_program_that_jax_would_do_more_for_has_no_short_way() -> None:
    x = jnp.arange(3.0)
    assert jax_starters.starter(compiled(lambda x: (x + 1,))) is not None
    calls = compiled(lambda x: (jax.debug.print("{}", x), x)[1:])
    unused = jax.jit(lambda x, y: (x,)).trace(x, x).lower().compile()
    assert [jax_starters.starter(each) for each in (calls, unused, object())] == [None] * 3
    assert jax_starters.call_by_jax(compiled(lambda x: (x * 2,)), [x])[0].tolist() == [0, 2, 4]


def test_a_program_with_ordered_callbacks_runs_in_the_middle_of_a_trace() -> None:
    """As after an interrupt that left JAX there, or in a finalizer."""
    seen: list[float] = []

    def note(x: np.ndarray) -> None:
        seen.append(float(x))

    def program(x: jax.Array) -> jax.Array:
        jax.experimental.io_callback(note, None, x, ordered=True)
        return x * 2

    x = jnp.float32(3)
    executable = jax.jit(program).lower(x).compile()
    jax_starters.call_by_jax(executable, [x])  # the token that it leaves goes to the next run

    def traced(y: jax.Array) -> jax.Array:
        assert float(jax_starters.call_by_jax(executable, [x])) == 6  # type: ignore[arg-type]
        return y

    jax.make_jaxpr(traced)(1.0)
    jax.effects_barrier()
    assert seen == [3.0, 3.0]
