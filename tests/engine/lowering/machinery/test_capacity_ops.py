"""Values with room to grow, against NumPy."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.lowering.machinery import capacity_ops

ROOM = np.arange(2 * 8, dtype=np.int32).reshape(2, 8)
append, take = jax.jit(capacity_ops.append, static_argnums=3), jax.jit(capacity_ops.take, static_argnums=(2, 3))
pads = {width: jax.jit(capacity_ops.pad, static_argnums=(2,)) for width in (3, 8, 11)}


@settings(max_examples=20)
@given(st.integers(0, 6))
def test_what_is_appended_lies_behind_the_length(length: int) -> None:
    last = np.array([[-1, -2], [-3, -4]], np.int32)
    expected = ROOM.copy()
    expected[:, length : length + 2] = last
    np.testing.assert_array_equal(append(ROOM, last, length), expected)


@settings(max_examples=20)
@given(st.integers(0, 5))
def test_a_part_is_taken_from_where_it_begins(start: int) -> None:
    np.testing.assert_array_equal(take(ROOM, start, 3, (2, 3, 1)), ROOM[:, start : start + 3, None])


@settings(max_examples=20)
@given(st.integers(0, 8), st.sampled_from([3, 8, 11]), st.integers(-9, 9))
def test_what_is_behind_the_length_is_filled(length: int, width: int, fill: int) -> None:
    expected = np.full((2, width), fill, np.int32)
    shown = min(length, width)
    expected[:, :shown] = ROOM[:, :shown]
    np.testing.assert_array_equal(pads[width](ROOM, length, width, fill), expected)


def test_room_is_made_behind_the_value() -> None:
    enlarged = np.asarray(capacity_ops.enlarge(jax.numpy.asarray(ROOM), 12))
    assert enlarged.shape == (2, 12)
    np.testing.assert_array_equal(enlarged[:, :8], ROOM)
    assert capacity_ops.COUNTING == {capacity_ops.APPEND, capacity_ops.TAKE, capacity_ops.PAD, capacity_ops.IS_VALID}


def test_rows_grow_in_front_of_the_last_dimension() -> None:
    room = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    enlarged = np.asarray(capacity_ops.enlarge(jax.numpy.asarray(room), 5, -2))
    np.testing.assert_array_equal(enlarged, np.pad(room, [(0, 0), (0, 1), (0, 0)]))
    longer = room.copy()
    longer[:, 2] = -1
    np.testing.assert_array_equal(append(room, np.full((2, 1, 3), -1, np.float32), 2, -2), longer)
    np.testing.assert_array_equal(capacity_ops.pad(room, 2, 4, 0.0, -2)[:, 2:], np.zeros((2, 2, 3)))
    assert capacity_ops.is_valid(room, 3, -2).tolist() == [[[True, True, True, False]]]
