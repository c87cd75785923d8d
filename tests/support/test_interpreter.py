"""The interpreter and XLA compute the same results."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from .interpreter import interpret

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 9
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: (x * 2 - 1) / 3 + jnp.abs(x),
    "narrow": lambda x: (x.astype(jnp.bfloat16) * 1.1).astype(jnp.float16),
    "integers": lambda x: x.astype(jnp.int8) // 3 % 5 << 2,
    "out of range": lambda x: (x * 1e20).astype(jnp.int32),
    "complex": lambda x: jnp.abs(lax.complex(x, x * 2) ** 2),
    "functions": lambda x: jnp.exp(-jnp.abs(x)) + jnp.tanh(x) + lax.erf(x),
    "comparisons": lambda x: jnp.where((x > 0) & ~(x == 3), x, -1),
    "sums": lambda x: x.sum(1) + x.prod((0, 1)) + x.mean(),
    "extremes": lambda x: x.max(0) - x.min((0, 2))[:, None] + x.argmax(1).max(),
    "truths": lambda x: (x > 0).all(1) | (x < 0).any(),
    "running": lambda x: jnp.cumsum(x, 1) + lax.cummax(x, axis=2, reverse=True) + jnp.cumprod(x[..., :2], 2)[..., :1],
    "sorted": lambda x: jnp.sort(x, 1) + jnp.argsort(-x, 2),
    "products": lambda x: jnp.einsum("bij,bkj->bik", x, x) + (x[0] @ x[1].T)[None],
    "shapes": lambda x: jnp.concatenate([x.reshape(4, 6), x.reshape(6, 4).T]).squeeze()[::-1, 1::2],
    "stacked": lambda x: jnp.stack([x, x.transpose(0, 1, 2)], 1)[:, 1, None],
    "padded": lambda x: lax.pad(x, np.float32(7), ((1, -1, 0), (0, 2, 1), (-1, 1, 2))),
    "gathered": lambda x: x[:, jnp.array([2, 0, 9, -1])] + x[jnp.array([[0, 1]]), jnp.array([[1, 1]])].sum(),
    "taken": lambda x: jnp.take_along_axis(x, jnp.array([[[0, 3]], [[1, 7]]]), 2),
    "scattered": lambda x: x.at[:, jnp.array([0, 0, 2])].add(1).at[1, jnp.array([5, 1])].set(0),
    "scattered extremes": lambda x: x.at[jnp.array([1, 1]), :, 2].max(x[:, :, 0]).at[0].mul(2).at[1, 1].min(-5),
    "slices": lambda x: lax.dynamic_update_slice(x, lax.dynamic_slice(x, (0, 2, 3), (1, 2, 2)) * 0, (1, 1, 9)),
    "bits": lambda x: lax.bitcast_convert_type(x, jnp.uint8).sum(-1) + lax.bitcast_convert_type(x, jnp.int32),
    "loops": lambda x: lax.fori_loop(0, 3, lambda i, y: y * 0.5 + i, x) + lax.while_loop(
        lambda y: y.sum() < 100, lambda y: y + 1, x
    ),
    "scans": lambda x: lax.scan(lambda c, row: (c + row, c * row), x[0], x, reverse=True)[1],
    "branches": lambda x: lax.cond(x.sum() > 0, lambda y: y, lambda y: -y, x) + lax.switch(1, [jnp.sin, jnp.cos], x),
    "iota": lambda x: lax.broadcasted_iota(jnp.int32, (3, 4), 1) + x[0].astype(jnp.int32),
    "nothing": lambda x: x[:0].sum(0) + x[:, :0].max((0, 1), initial=-np.inf).sum() * 0,
    "windows": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 1, 2), "VALID"),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("turned", [False, True])
def test_the_interpreter_computes_what_xla_computes(name: str, turned: bool) -> None:
    x = np.asarray(X[::-1, ::-1]) if turned else X
    function = FUNCTIONS[name]
    with jax.enable_x64(True):
        (found,) = interpret(lambda y: [function(y)], [x])
        expected = np.asarray(jax.jit(function)(x))
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found.astype(np.complex128), expected.astype(np.complex128), rtol=1e-6, atol=1e-6)
