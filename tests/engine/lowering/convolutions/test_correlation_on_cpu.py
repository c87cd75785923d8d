"""Each form of a convolution for the CPU computes what XLA's own does, and is chosen for the shapes it is for."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.lowering.convolutions import correlation_on_cpu as forms
from torch_xla._engine.lowering.convolutions.window import Window


def window(kernel: tuple[int, ...], stride: Any = 1, padding: Any = 0, dilation: Any = 1, base: Any = 1) -> Window:
    def each(number: Any) -> tuple[Any, ...]:
        return number if isinstance(number, tuple) else (number,) * len(kernel)

    margins = tuple(pad if isinstance(pad, tuple) else (pad, pad) for pad in each(padding))
    return Window(kernel, each(stride), margins, each(dilation), each(base))


# The form, its window, groups, the sizes of operand and kernel.
CORRELATIONS: dict[str, tuple[Callable[..., Any], Window, int, tuple[int, ...], tuple[int, ...]]] = {
    "one element": (forms._pointwise, window((1, 1), (2, 1), (1, 0)), 2, (2, 4, 5, 6), (6, 2, 1, 1)),
    "one element, large": (forms._pointwise, window((1, 1)), 2, (2, 4, 13, 11), (6, 2, 1, 1)),
    "patches": (forms._patchwise, window((2, 3), (2, 3)), 1, (2, 3, 5, 7), (4, 3, 2, 3)),
    "spread": (forms._spread, window((2, 3), 1, ((1, 1), (2, 3)), 1, (2, 3)), 1, (2, 3, 4, 2), (4, 3, 2, 3)),
    "depthwise": (forms._depthwise, window((3, 2), (1, 2), 1, (2, 1)), 4, (2, 4, 6, 5), (8, 1, 3, 2)),
    "groups": (forms._joined_groups, window((3, 3), 1, 1), 4, (2, 8, 5, 4), (12, 2, 3, 3)),
    "planes": (forms._as_planes, window((2, 3, 3), (1, 2, 1), 1), 2, (2, 4, 4, 6, 5), (6, 2, 2, 3, 3)),
    "side by side": (
        forms._side_by_side,
        window((3, 3), (2, 1), ((1, 0), (2, 1)), (1, 2)),
        1,
        (3, 4, 7, 8),
        (5, 4, 3, 3),
    ),
    "columns": (forms._by_columns, window((3, 2), (2, 1), 1, (1, 2)), 1, (3, 4, 4, 4), (5, 4, 3, 2)),
}


def numbers(*size: int) -> jax.Array:
    return jnp.asarray((np.arange(int(np.prod(size))).reshape(size) * 7 % 11 - 5).astype(np.float32))


@pytest.mark.parametrize("name", CORRELATIONS)
def test_a_form_computes_the_same_and_is_the_one_that_is_chosen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form, seen, groups, operand, kernel = CORRELATIONS[name]
    if name == "side by side":
        monkeypatch.setattr(forms, "_WORTH_THREADS", 0)
        monkeypatch.setattr(forms, "_TRANSPOSED_CHANNELS", 1)
        monkeypatch.setattr(forms, "_FEW_POSITIONS", 0)
    x, k = numbers(*operand), numbers(*kernel)
    calls = []
    monkeypatch.setattr(forms, form.__name__, lambda *given: calls.append(1) or form(*given))
    chosen = forms.correlation_form(operand, kernel, seen, groups)
    assert chosen is not None
    found, expected = jax.jit(lambda x, k: (chosen(x, k), seen.convolve(x, k, groups)))(x, k)
    assert len(calls) == 1
    np.testing.assert_allclose(found, expected)


GRADIENTS = {
    "one element": (window((1, 1), (2, 1)), 2, (2, 4, 5, 6), 6),
    "one element, large": (window((1, 1)), 1, (2, 3, 33, 32), 4),
    "depthwise": (window((3, 2), 1, 1), 4, (2, 4, 5, 24), 8),
    "depthwise, by rows": (window((7, 6), 1, 3), 3, (2, 3, 8, 24), 3),
    "depthwise, few columns": (window((3, 2), (2, 3), ((1, 0), (2, 1)), (1, 2)), 4, (2, 4, 5, 9), 8),
    "depthwise, one dimension": (window((4,), 2, 1), 3, (2, 3, 9), 3),
    "depthwise, three dimensions": (window((2, 3, 2), (1, 2, 1), 1), 2, (2, 2, 3, 5, 4), 4),
    "one dimension": (window((3,), 2, 1, 2), 2, (3, 4, 9), 6),
    "columns": (window((3, 2), (2, 1), 1, (1, 2)), 2, (3, 4, 6, 5), 6),
    "columns, in steps": (window((3, 3), 1, 1), 1, (4, 2, 24, 24), 3),
    "planes": (window((2, 3, 3), 1, 1), 2, (2, 4, 4, 5, 4), 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_by_the_kernel(name: str) -> None:
    seen, groups, operand, outputs = GRADIENTS[name]
    x, k = numbers(*operand), numbers(outputs, operand[1] // groups, *seen.kernel)
    grad = numbers(operand[0], outputs, *seen.positions(operand[2:]))
    form = forms.kernel_gradient_form(x.shape, grad.shape, seen, groups)
    assert form is not None

    def both(x: jax.Array, grad: jax.Array) -> Any:
        return form(x, grad), jax.vjp(lambda k: seen.convolve(x, k, groups), k)[1](grad)[0]

    found, expected = jax.jit(both)(x, grad)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_gradient_by_diagonals_takes_nothing_from_beside_them() -> None:
    seen = window((1, 2))
    x, grad = jnp.array([[[[np.inf, 1.0, 2.0]], [[1.0, 2.0, 3.0]]]]), jnp.ones((1, 2, 1, 2))
    form = forms.kernel_gradient_form(x.shape, grad.shape, seen, 2)
    assert form is not None
    np.testing.assert_array_equal(form(x, grad)[:, 0, 0], [[np.inf, 3.0], [3.0, 5.0]])


def test_the_gradient_by_a_small_operand() -> None:
    seen = window((3, 2), (2, 1), 1, (1, 2))
    x, k = numbers(3, 4, 4, 4), numbers(5, 4, 3, 2)
    grad = numbers(3, 5, *seen.positions((4, 4)))
    form = forms.operand_gradient_form(grad.shape, seen, 1, (4, 4))
    assert form is not None

    def both(grad: jax.Array, k: jax.Array) -> Any:
        return form(grad, k), jax.vjp(lambda x: seen.convolve(x, k, 1), x)[1](grad)[0]

    np.testing.assert_allclose(*jax.jit(both)(grad, k))


def test_xlas_own_is_taken_where_it_is_best() -> None:
    plain = window((3, 3), 1, 1)
    assert forms.correlation_form((8, 128, 32, 32), (128, 128, 3, 3), plain, 1) is None
    assert forms.correlation_form((8, 2, 32, 32), (4, 2, 3, 3), plain, 1) is None  # few channels
    assert forms.kernel_gradient_form((1, 3, 64, 64), (1, 4, 1, 1), window((9, 9)), 1) is None
    assert forms.operand_gradient_form((1, 4, 32, 32), plain, 1, (32, 32)) is None
