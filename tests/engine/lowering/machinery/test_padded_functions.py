"""Functions of symbolic sizes on padded arrays: what counts is what the function gives for arrays of that size."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from torch_xla._engine.lowering.machinery.padded_functions import bounded

ROOM = 8

# Each of x, of shape (n, 4), and w, of shape (4, 3).
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "mean of a softmax": lambda x, w: jax.nn.softmax(x @ w, -1).mean(0),
    "concatenation, cut": lambda x, w: jnp.concatenate([x, x * 2, x], 0)[1:],
    "flattened": lambda x, w: (x @ w).reshape(-1),
    "a size inside of another": lambda x, w: jnp.stack([x, x + 1]).reshape(-1, 4) @ w,
    "a size divided": lambda x, w: jnp.concatenate([x, x], 0).reshape(-1, 2, 4).sum(1),
    "the last row": lambda x, w: x[-1],
    "sorted": lambda x, w: jnp.sort(x, 0),
    "reversed": lambda x, w: jnp.flip(x, 0),
    "sums from the front and from the end": lambda x, w: jnp.cumsum(x, 0) + lax.cumsum(x, 0, reverse=True),
    "a product over rows": lambda x, w: x.T @ (1 / (x * x)),
    "attention": lambda x, w: jax.nn.softmax(x @ x.T, -1) @ x,
    "the largest and the least": lambda x, w: jnp.argmax(x, 0) + 10 * jnp.argmin(x, 0) + x.max(0) - x.min(0),
    "padded": lambda x, w: jnp.pad(x, ((1, 2), (0, 0)), constant_values=3.0).sum(0),
    "variance": lambda x, w: x.var(0, ddof=1),
    "a gradient by weights": lambda x, w: jax.grad(lambda w: jnp.log(jax.nn.softmax(x @ w, -1)).mean())(w),
    "a sum from -0": lambda x, w: lax.reduce(x, np.float32(-0.0), lambda left, right: left + right, (0,)),
    "places of rows": lambda x, w: x[jnp.argsort(x[:, 0])],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_counts_is_exact_whatever_lies_behind(name: str) -> None:
    function = FUNCTIONS[name]
    (n,) = jax.export.symbolic_shape("n,")
    described = jax.ShapeDtypeStruct((n, 4), np.float32), jax.ShapeDtypeStruct((4, 3), np.float32)
    run = jax.jit(bounded(jax.jit(function).trace(*described).jaxpr, ["n"], [ROOM]))
    random = np.random.default_rng(0)
    w = random.normal(size=(4, 3)).astype(np.float32)
    for count in (2, 5, ROOM):
        x = random.normal(size=(count, 4)).astype(np.float32)
        padded = np.full((ROOM, 4), np.nan, np.float32)
        padded[:count] = x
        (found,) = run(np.array([count], np.int32), padded, w)
        expected = function(x, w)
        np.testing.assert_allclose(found[tuple(map(slice, expected.shape))], expected, rtol=2e-5, atol=1e-5)


def test_a_sum_from_minus_zero_has_the_sign_of_zeros_whatever_lies_behind() -> None:
    (n,) = jax.export.symbolic_shape("n,")
    function = lambda x: lax.reduce(x, np.float32(-0.0), lambda left, right: left + right, (0,))  # noqa: E731
    closed = jax.jit(function).trace(jax.ShapeDtypeStruct((n,), np.float32)).jaxpr
    for number in (-0.0, 0.0):
        padded = np.array([number, number, np.nan, 1], np.float32)
        (found,) = jax.jit(bounded(closed, ["n"], [4]))(np.array([2], np.int32), padded)
        assert found == 0 and np.signbit(found) == np.signbit(number)


def test_of_reductions_by_a_function_others_are_refused() -> None:
    (n,) = jax.export.symbolic_shape("n,")
    function = lambda x: lax.reduce(x, np.float32(0), lambda left, right: left + 2 * right, (0,))  # noqa: E731
    closed = jax.jit(function).trace(jax.ShapeDtypeStruct((n,), np.float32)).jaxpr
    with pytest.raises(NotImplementedError, match="only sums take sizes that change"):
        jax.eval_shape(bounded(closed, ["n"], [4]), np.array([3], np.int32), np.zeros(4, np.float32))


def test_what_is_not_known_to_be_exact_is_refused_by_name() -> None:
    (n,) = jax.export.symbolic_shape("n,")
    closed = jax.jit(jnp.linalg.cholesky).trace(jax.ShapeDtypeStruct((n, n), np.float32)).jaxpr
    with pytest.raises(NotImplementedError, match=r"a size that changes reaches cholesky .*Compute it outside"):
        jax.eval_shape(bounded(closed, ["n"], [4]), np.array([3], np.int32), np.eye(4, dtype=np.float32))
