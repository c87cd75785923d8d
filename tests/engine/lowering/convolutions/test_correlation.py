"""The operation behind convolutions and its gradients, against sums by hand and derivatives by JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.lowering.convolutions.correlation import correlate, kernel_gradient, operand_gradient
from torch_xla._engine.lowering.convolutions.window import Window


def window(kernel: Any, stride: Any, padding: Any, dilation: Any, base: Any) -> Window:
    return Window(kernel, stride, padding, dilation, base)


# The window, groups, and the channels that go out.
CASES = {
    "plain": (window((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1)), 1, 3),
    "cropped": (window((2, 1), (1, 1), ((-1, 0), (0, -1)), (1, 1), (1, 1)), 1, 3),
    "steps and gaps": (window((3, 2), (2, 1), ((2, 0), (1, 2)), (1, 2), (1, 1)), 2, 6),
    "a spread operand": (window((3, 2), (1, 1), ((2, 2), (1, 1)), (1, 1), (2, 2)), 1, 3),
    "everything": (window((2, 2), (2, 1), ((1, 2), (0, 2)), (2, 1), (1, 2)), 2, 4),
}


def numbers(size: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return (np.arange(int(np.prod(size))).reshape(size) * 7 % 11 - 5).astype(dtype)


def by_hand(operand: np.ndarray, kernel: np.ndarray, window: Window, groups: int) -> np.ndarray:
    positions = window.positions(operand.shape[2:])
    shifts = jax.jit(lambda x: jnp.stack(list(window.shifts(window.padded(x), positions)), 2))
    columns = np.asarray(shifts(operand)).reshape(operand.shape[0], groups, -1, *positions)
    rows = kernel.reshape(groups, kernel.shape[0] // groups, -1)
    return np.einsum("goi,ngihw->ngohw", rows, columns).reshape(operand.shape[0], kernel.shape[0], *positions)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_sums_and_both_gradients(name: str) -> None:
    seen, groups, outputs = CASES[name]
    operand, kernel = numbers((2, 2 * groups, 6, 5)), numbers((outputs, 2, *seen.kernel))
    grad = numbers((2, outputs, *seen.positions((6, 5))))

    def all_of_them(x: jax.Array, k: jax.Array, grad: jax.Array) -> Any:
        ours = correlate(x, k, seen, groups), operand_gradient(grad, k, seen, groups, (6, 5))
        plain, back = jax.vjp(lambda x, k: seen.convolve(x, k, groups), x, k)
        return (*ours, kernel_gradient(x, grad, seen, groups)), (plain, *back(grad))

    found, expected = jax.jit(all_of_them)(operand, kernel, grad)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs)
    np.testing.assert_allclose(found[0], by_hand(operand, kernel, seen, groups))


PLAIN = Window((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16], ids=["bf16", "f16"])
def test_narrow_floats_give_wide_sums(dtype: Any) -> None:
    operand, kernel = numbers((1, 8, 5, 5), dtype), numbers((4, 8, 3, 3), dtype)
    found = correlate(jnp.asarray(operand), jnp.asarray(kernel), PLAIN, 1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, by_hand(operand.astype(np.float32), kernel.astype(np.float32), PLAIN, 1))


def test_without_elements_the_sums_are_zero() -> None:
    assert correlate(jnp.ones((0, 2, 5, 5)), jnp.ones((4, 2, 3, 3)), PLAIN, 1).shape == (0, 4, 5, 5)
    assert not correlate(jnp.ones((1, 0, 5, 5)), jnp.ones((4, 0, 3, 3)), PLAIN, 1).any()
    assert not kernel_gradient(jnp.ones((0, 2, 5, 5)), jnp.ones((0, 4, 5, 5)), PLAIN, 1).any()
    assert operand_gradient(jnp.ones((0, 4, 5, 5)), jnp.ones((4, 2, 3, 3)), PLAIN, 1, (5, 5)).shape == (0, 2, 5, 5)
