"""Callbacks in a traced function of JAX are found, ordered, or removed, at any depth."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

from torch_xla._engine.compat.names import jax_callbacks

SEEN: list[Any] = []


def note(x: Any) -> Any:
    SEEN.append(float(x))
    return x


def plain(x: Any) -> Any:
    jax.debug.callback(note, x)
    jax.debug.callback(note, x + 1)
    return x * 2


def with_result(x: Any) -> Any:
    return io_callback(note, jax.ShapeDtypeStruct((), x.dtype), x) + 1


def in_a_loop(x: Any) -> Any:
    def body(index: Any, x: Any) -> Any:
        jax.debug.callback(note, x)
        return x + 1

    return jax.lax.fori_loop(0, 3, body, x)


def in_a_branch(x: Any) -> Any:
    return jax.lax.cond(x > 0, plain, lambda x: x, x)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "plain": plain, "jitted": lambda x: jax.jit(plain)(x), "loop": in_a_loop, "branch": in_a_branch,
}  # fmt: skip


def run(closed: Any, x: float) -> tuple[float, list[float]]:
    SEEN.clear()
    (result,) = jax.jit(jax.extend.core.jaxpr_as_fun(closed))(jnp.float32(x))
    jax.effects_barrier()
    return float(result), list(SEEN)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_in_order_they_are_made_as_they_were_traced(name: str) -> None:
    closed = jax.make_jaxpr(FUNCTIONS[name])(jnp.float32(1))
    assert jax_callbacks.calls_back(closed)
    ordered = jax_callbacks.in_order(closed)
    assert all("Ordered" in str(effect) for effect in ordered.effects) and jax_callbacks.calls_back(ordered)
    expected = [1, 2, 3] if name == "loop" else [1, 2]
    assert run(ordered, 1) == (4 if name == "loop" else 2, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_them_the_result_is_the_same(name: str) -> None:
    closed = jax.make_jaxpr(FUNCTIONS[name])(jnp.float32(1))
    without = jax_callbacks.without_callbacks(closed)
    assert not jax_callbacks.calls_back(without) and not without.effects
    assert run(without, 1) == (4 if name == "loop" else 2, [])
    assert jax_callbacks.calls_back(closed)  # it is as it was


def test_one_whose_result_is_used_stays() -> None:
    closed = jax.make_jaxpr(with_result)(jnp.float32(1))
    assert run(jax_callbacks.in_order(closed), 5) == (6, [5])
    assert run(jax_callbacks.without_callbacks(closed), 5)[0] == 6


def test_a_function_that_calls_nobody_is_left_as_it_is() -> None:
    closed = jax.make_jaxpr(lambda x: jnp.sin(x) + 1)(jnp.float32(1))
    assert not jax_callbacks.calls_back(closed) and not jax_callbacks.in_order(closed).effects
    assert str(jax_callbacks.in_order(closed)) == str(closed) == str(jax_callbacks.without_callbacks(closed))
