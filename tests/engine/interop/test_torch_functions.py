"""Functions of tensors as functions of arrays: transforms of JAX around them, beside the same written in JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor

from torch_xla._engine.interop.torch_functions import JaxFunction, MissingKey, TensorKind

WEIGHTS = TensorKind((3,), torch.complex64)
REALS = TensorKind((3,), torch.float32)


def test_gradients_of_complex_numbers_are_those_of_jax() -> None:
    def spectrum(w: Tensor, x: Tensor) -> list[Tensor]:
        y = torch.fft.fft(w * x)
        return [((y * y).sin().real * y.imag).sum()]

    def plain(w: jax.Array, x: jax.Array) -> jax.Array:
        y = jnp.fft.fft(w * x)
        return jnp.sum(jnp.sin(y * y).real * y.imag)

    def twice(f: Any) -> Any:
        return jax.grad(lambda w: jnp.sum(jnp.real(jax.grad(f)(w, x)) ** 2 + jnp.imag(jax.grad(f)(w, x))))

    converted = JaxFunction(spectrum, [WEIGHTS, REALS])

    def function(w: jax.Array, x: jax.Array) -> jax.Array:
        return converted([w, x])[0]

    w, x = jnp.array([0.3 + 0.2j, -0.5j, 0.4 - 0.1j], np.complex64), jnp.array([1.0, 2.0, -0.5])
    np.testing.assert_allclose(function(w, x), plain(w, x), rtol=1e-4)
    np.testing.assert_allclose(jax.grad(function)(w, x), jax.grad(plain)(w, x), rtol=1e-4)
    np.testing.assert_allclose(twice(function)(w), twice(plain)(w), rtol=1e-3)
    moved = jnp.array([1.0 - 2.0j, 0.5, 1j], np.complex64)

    def along(f: Callable[..., object]) -> object:
        return jax.jvp(lambda w: f(w, x), (w,), (moved,))[1]

    np.testing.assert_allclose(along(function), along(plain), rtol=1e-4)
    np.testing.assert_allclose(along(jax.grad(function)), along(jax.grad(plain)), rtol=1e-3)
    pulled, expected = (
        jax.grad(lambda w, f=f: jax.jvp(lambda w: f(w, x), (w,), (moved,))[1])(w) for f in (function, plain)
    )
    np.testing.assert_allclose(pulled, expected, rtol=1e-3)


def test_results_without_gradient_and_unused_inputs() -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x.argmax(), x.detach() * 2, (x > 0) * x]

    converted = JaxFunction(function, [REALS, REALS])
    x, y = jnp.array([1.0, -2.0, 3.0]), jnp.ones(3)

    def total(x: Any, y: Any) -> Any:
        place, doubled, positive = converted([x, y])
        return jnp.sum(doubled) + jnp.sum(positive) + place

    assert converted([x, y])[0].dtype == np.int32
    by_x, by_y = jax.grad(total, argnums=(0, 1))(x, y)
    assert by_x.tolist() == [1.0, 0.0, 1.0]
    assert by_y.tolist() == [0.0] * 3
    assert jax.grad(lambda x: jnp.sum(converted([x, y])[1]))(x).tolist() == [0.0] * 3


@pytest.mark.parametrize("draw", [torch.rand_like, torch.randn_like, torch.bernoulli, lambda x: x.exponential_()])
def test_a_batch_of_keys_draws_what_each_key_draws(draw: Any) -> None:
    converted = JaxFunction(lambda x: [draw(x * 0.5), draw(x * 0.5)], [REALS])
    keys, x = jax.random.split(jax.random.key(3), 5), jnp.ones(3)
    batched = jax.vmap(lambda key: converted([x], key))(keys)
    for place, key in enumerate(keys):
        for one, each in zip(batched, converted([x], key), strict=True):
            np.testing.assert_allclose(one[place], each, rtol=1e-6)
    first, second = batched
    assert bool((first != second).any())
    with pytest.raises(MissingKey):
        converted([x])


def test_in_loops_and_under_remat() -> None:
    converted = JaxFunction(lambda x, w: [(x * w).tanh()], [REALS, REALS])

    def looped(w: Any, step: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda x, _: (step(x, w), None), jnp.ones(3), None, length=4)[0])

    w = jnp.array([0.5, -1.0, 2.0])
    expected = jax.grad(looped)(w, lambda x, w: jnp.tanh(x * w))
    for step in (lambda x, w: converted([x, w])[0], jax.checkpoint(lambda x, w: converted([x, w])[0])):
        np.testing.assert_allclose(jax.jit(jax.grad(looped), static_argnums=1)(w, step), expected, rtol=1e-5)
