"""How a kernel slides over an operand, for windows of all kinds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.lowering.convolutions.window import Window

PLACES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.tuples(st.integers(-1, 2), st.integers(-1, 2)))
MORE = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(4, 7))


def in_one_dimension(place: tuple, more: tuple) -> tuple[Window, int]:  # type: ignore[type-arg]
    (kernel, stride, padding), (dilation, base, extent) = place, more
    return Window((kernel,), (stride,), (padding,), (dilation,), (base,)), extent


def seen_by_hand(window: Window, extent: int) -> list[list[int]]:
    """For each position the elements of the operand that the kernel meets; -1: a margin or a gap."""
    (low, high), base = window.padding[0], window.base[0]
    spread = [-1] * ((extent - 1) * base + 1)
    spread[::base] = range(extent)
    line = [-1] * low + spread + [-1] * high if min(low, high) >= 0 else spread
    if min(low, high) < 0:
        line = [-1] * max(low, 0) + spread[max(-low, 0) : len(spread) - max(-high, 0)] + [-1] * max(high, 0)
    reach = window.dilation[0] * (window.kernel[0] - 1)
    return [line[at : at + reach + 1 : window.dilation[0]] for at in range(0, len(line) - reach, window.stride[0])]


@pytest.mark.slow
@settings(max_examples=20)
@given(PLACES, MORE)
def test_positions_and_what_is_seen_at_each(place: tuple, more: tuple) -> None:  # type: ignore[type-arg]
    window, extent = in_one_dimension(place, more)
    expected = seen_by_hand(window, extent)
    positions = window.positions((extent,))
    assert positions == (len(expected),)
    if not expected:
        return

    def shifts(operand: jax.Array) -> jax.Array:
        return jnp.stack([each[0] for each in window.shifts(window.padded(operand), positions)], 1)

    assert (jax.jit(shifts)(np.arange(1, extent + 1)[None]) - 1).tolist() == expected


@settings(max_examples=60)
@given(PLACES, MORE, st.integers(1, 6))
def test_a_fitted_window_has_so_many_positions(place: tuple, more: tuple, count: int) -> None:  # type: ignore[type-arg]
    window, extent = in_one_dimension(place, more)
    fitted = window.fitted((extent,), (count,))
    assert fitted.positions((extent,)) == (count,) and fitted.padding[0][0] == window.padding[0][0]


@settings(max_examples=60)
@given(PLACES, MORE)
def test_the_reverse_leads_back(place: tuple, more: tuple) -> None:  # type: ignore[type-arg]
    window, extent = in_one_dimension(place, more)
    assert window.reverse().reverse() == window
    (count,) = window.positions((extent,))
    if count > 0:
        back = window.fitted((extent,), (count,)).reverse()
        assert back.positions((count,)) == (extent,)


def test_nothing_to_pad_is_left_alone() -> None:
    x = jnp.ones((2, 3, 4, 5))
    plain = Window((2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1))
    assert plain.padded(x) is x and plain.positions((4, 5)) == (3, 4)
    assert plain.fields() == ((2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1))
    assert Window((1,), (1,), ((2, 1),), (1,), (3,)).positions((0,)) == (3,)  # margins alone
