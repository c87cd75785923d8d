"""Traces of one function at several sizes give a program of a symbolic size, or are refused."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from torch_xla._engine.lowering.machinery.common_jaxpr import SYMBOL, common
from torch_xla._engine.lowering.machinery.padded_functions import bounded

CAPACITY = 16
X = np.linspace(-1, 1, 4, dtype=np.float32)

SAME: dict[str, Callable[[Any, int], Any]] = {
    "sum": lambda x, n: (jnp.arange(n)[:, None] * x).sum(0),
    "number": lambda x, n: x * n + (2 * n - 1),
    "inner program": lambda x, n: jax.jit(lambda y: jnp.where(y > n, y, 0).sum())(jnp.arange(2 * n) * x[0]),
    "last": lambda x, n: (jnp.arange(n)[:, None] * x)[n - 1],
    "padding that ends at a fixed size": lambda x, n: jnp.pad(jnp.arange(n) * x[1], (1, 20 - n)).sum(),
    "padding that grows": lambda x, n: jnp.pad(x, (0, n), constant_values=2).sum(),
    "part written": lambda x, n: lax.dynamic_update_slice(jnp.outer(jnp.arange(n), x), x[None], (n - 1, 0)).sum(0),
    "largest along an axis": lambda x, n: lax.top_k(-jnp.outer(jnp.arange(n) + 1, x * x + 1).T, 2)[0],
    "loop": lambda x, n: lax.fori_loop(0, 3, lambda i, y: y * 2, x) + jnp.ones(n).sum(),
}


def program(function: Callable[[Any, int], Any], least: int = 2) -> Callable[..., list[Any]]:
    counts = least, CAPACITY - 1, CAPACITY
    traces = [jax.make_jaxpr(lambda x, n=n: function(x, n))(X) for n in counts]
    return jax.jit(bounded(common(traces, counts), (SYMBOL,), (CAPACITY,)))


@pytest.mark.parametrize("name", SAME)
def test_it_computes_what_the_function_computes_at_each_size(name: str) -> None:
    run = program(SAME[name])
    for n in (2, 3, 9, 15, 16):
        (found,) = run(jnp.array([n], np.int32), X)
        np.testing.assert_allclose(found, SAME[name](X, n), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x, n: x.sum() if n % 2 else x.max(), "a call is"),
        (lambda x, n: x + 1 if n % 2 else x + 1 + 1, "its length is"),
        (lambda x, n: x * (1 / n), "a constant is"),
        (lambda x, n: jnp.asarray(np.arange(n)) + x[0], "a constant is"),
        (lambda x, n: jnp.ones(n).sum() + lax.fori_loop(0, 3, lambda i, y: y + 1, jnp.ones(n)).sum(), "reaches"),
        (lambda x, n: lax.argmax(jnp.ones((n, 4)), n % 2, np.int32).sum(), "axes is"),
    ],
)
def test_traces_that_differ_otherwise_are_refused(function: Callable[[Any, int], Any], why: str) -> None:
    with pytest.raises(NotImplementedError, match=why):
        program(function)(jnp.array([5], np.int32), X)


@pytest.mark.parametrize(
    "size",
    [
        lambda n: n // 2,
        lambda n: (n - 1) // 2,
        lambda n: min(n, 10),
        lambda n: max(n, 14),
        lambda n: 1 << (n - 1).bit_length(),
        lambda n: n if n > 12 else 2 * n,
        lambda n: -(-n // 8) * 8,
        lambda n: n % 2,
    ],
)
def test_a_size_that_is_no_linear_function_is_refused(size: Callable[[int], int]) -> None:
    with pytest.raises(NotImplementedError, match="is another one at another size"):
        program(lambda x, n: (jnp.arange(size(n)) * x[0]).sum() + size(n), least=5)
