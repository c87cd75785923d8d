"""Barriers, and values that wait for another one, change nothing."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine import dtypes
from torch_xla._engine.lowering.machinery import barrier

ODD = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 3e38]
EARLIER = [
    jnp.array([np.nan]),
    jnp.array([[-1.5]]),
    jnp.zeros((0, 3)),
    jnp.array(True),
    jnp.array([-1j]),
    jnp.uint32(7),
]


def bits(array: jax.Array) -> bytes:
    return np.asarray(array).tobytes()


@pytest.mark.parametrize("dtype", dtypes.TO_JAX.values(), ids=str)
def test_what_waits_keeps_every_bit(dtype: np.dtype) -> None:
    with jax.enable_x64(True):
        numbers = np.array(ODD if jnp.issubdtype(dtype, np.inexact) else [0, 1, 100, 1], np.float64)
        with np.errstate(all="ignore"):
            array = jnp.asarray(numbers.astype(dtype))
        earlier = jnp.array([-1.5])
        found = (
            barrier.after([array], earlier)[0],
            barrier.behind(array, earlier),
            barrier.behind_in_place(array, earlier),
        )
        for waiting in found:
            assert waiting.dtype == array.dtype and waiting.shape == array.shape
            numbers_kept = np.asarray(waiting).astype(np.complex128), np.asarray(array).astype(np.complex128)
            np.testing.assert_array_equal(*numbers_kept)
            assert np.array_equal(np.signbit(numbers_kept[0].real), np.signbit(numbers_kept[1].real))


def test_what_stands_apart_is_computed_once_for_all_readers() -> None:
    def waves(x: jax.Array) -> jax.Array:
        return jnp.sin(x) + jnp.sin(x[::-1])

    def read(x: jax.Array, function: Callable[[jax.Array], jax.Array]) -> tuple[jax.Array, ...]:
        wave = function(x)
        return wave + 1, wave.T * 2, wave.sum(0)

    x = jnp.arange(64.0).reshape(8, 8)
    compiled = jax.jit(lambda x: read(x, barrier.apart(waves))).lower(x).compile()
    for found, expected in zip(compiled(x), read(x, waves), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    text = compiled.as_text()
    assert text.count(" sine(") == 2 and " call(" in text and 'inlineable="false"' in text
    assert text.count("inlineable") == 1, "only the call is marked"


def test_infinite_parts_of_complex_numbers_stay_what_they_are() -> None:
    parts = [complex(real, imag) for real in ODD[:6] for imag in ODD[:6]]
    array = jnp.array(parts, np.complex64)
    assert bits(barrier.behind(array, jnp.ones(1))) == bits(array)


@pytest.mark.parametrize("earlier", EARLIER, ids=lambda array: f"{array.dtype}{array.shape}")
def test_the_zero_is_zero_whatever_it_is_made_of(earlier: jax.Array) -> None:
    zero = barrier.zero_of(earlier)
    assert (zero.dtype, zero.shape, int(zero)) == (np.uint32, (), 0)


def test_no_simplification_sees_through_the_dependence() -> None:
    compiled = jax.jit(lambda x, y: barrier.behind(x, y)).lower(jnp.ones(3), jnp.ones(2)).compile().as_text()
    assert "f32[2]" in compiled.partition("ENTRY")[2]  # the other operand is read
    in_place = jax.jit(barrier.behind_in_place).lower(jnp.ones((2, 3)), jnp.ones(2)).compile().as_text()
    assert "f32[2]" in in_place.partition("ENTRY")[2]
    both = jax.jit(barrier.barrier)([jnp.ones(2), jnp.zeros(3)])
    assert [each.tolist() for each in both] == [[1, 1], [0, 0, 0]]
    assert barrier.once_on_cpu(jnp.ones(2)).tolist() == [1, 1]


def test_what_waits_in_place_is_not_copied() -> None:
    def program(x: jax.Array, earlier: jax.Array) -> jax.Array:
        return barrier.behind_in_place((x.T @ x).reshape(2, -1), earlier)

    compiled = jax.jit(program).lower(jnp.ones((64, 128)), jnp.ones(2)).compile()
    planned, text = compiled.memory_analysis(), compiled.as_text()
    assert planned is not None and planned.temp_size_in_bytes < 128 * 128 * 4  # the product is where the result is
    assert text is not None and " copy(" not in text
    numbers = jnp.array([[jnp.nan, -0.0, 1e-40], [jnp.inf, 1.0, 2.0]], jnp.float32)
    assert bits(barrier.behind_in_place(numbers, jnp.ones(2))) == bits(numbers)
    for odd in (jnp.zeros((0, 2)), jnp.float32(3), jnp.array([True, False]), jnp.array([1 - 2j])):
        kept = barrier.behind_in_place(odd, jnp.ones(1))
        assert bits(kept) == bits(odd) and kept.shape == odd.shape
