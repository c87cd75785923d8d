"""A barrier for the compiler: nothing is moved or merged across it."""

import jax

from .registry import lowers

BARRIER = "xla::optimization_barrier"


@lowers(BARRIER)
def barrier(arrays: list[jax.Array]) -> list[jax.Array]:
    """The same values, all of which are there before anything reads one of them."""
    return list(jax.lax.optimization_barrier(arrays))
