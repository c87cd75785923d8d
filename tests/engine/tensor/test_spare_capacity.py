"""A growing value has a larger buffer: appending, cutting and padding in it give NumPy's results."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from torch_xla._engine.ir.tape import Value
from torch_xla._engine.ir.view.geometry import Geometry
from torch_xla._engine.tensor import spare_capacity
from torch_xla._engine.tensor.spare_capacity import Grown, appended, padded, read_of_rows
from torch_xla._engine.tensor.storage import value_of, wrap


@pytest.fixture(autouse=True)
def nothing_is_known_to_grow() -> Iterator[None]:
    spare_capacity._lengths.clear()
    yield
    spare_capacity._lengths.clear()


def value(array: np.ndarray) -> Value:
    return value_of(torch.from_numpy(array).to("xla"))


def of(value: Value | None) -> np.ndarray:
    assert value is not None
    return wrap(value).cpu().numpy()


def grown(array: np.ndarray, by: int = 1) -> Grown:
    """Return the array, with its last elements appended one by one."""
    begin = array.shape[-1] - by
    spare_capacity._lengths[torch.from_numpy(array).dtype, array.shape[:-1]] = spare_capacity._GROWS
    found: Value = value(array[..., :begin])
    for place in range(begin, array.shape[-1]):
        made = appended(found, value(array[..., place : place + 1]))
        assert made is not None
        found = made
    assert isinstance(found, Grown)
    return found


TOKENS = np.arange(14).reshape(2, 7)


def test_what_is_seen_to_grow_for_the_second_time_gets_a_room() -> None:
    first, token = value(TOKENS), value(TOKENS[:, :1])
    assert appended(first, token) is None  # as any concatenation
    longer = value(np.concatenate([TOKENS, TOKENS[:, :1]], 1))
    found = appended(longer, token)
    assert isinstance(found, Grown) and found.length == 9 and found.state == "pending"
    np.testing.assert_array_equal(of(found), np.concatenate([TOKENS, TOKENS[:, :1], TOKENS[:, :1]], 1))


def test_floats_and_other_lengths_do_not_grow() -> None:
    floats = value(TOKENS.astype(np.float32))
    token = value(TOKENS[:, :1].astype(np.float32))
    assert appended(floats, token) is None and appended(floats, token) is None
    assert appended(value(TOKENS), value(TOKENS[:, :1])) is None
    assert appended(value(TOKENS), value(TOKENS[:, :1])) is None  # of the same length once more


def test_it_moves_into_a_room_of_twice_the_size_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_capacity, "_LEAST", 4)
    array = np.arange(18, dtype=np.int32).reshape(2, 9)
    found = grown(array, by=8)
    assert found.room.spec.size == (2, 16) and found.spec.size == (2, 9)
    np.testing.assert_array_equal(of(found), array)


def test_a_view_of_the_same_few_elements_of_each_row_is_taken_from_the_room() -> None:
    found = grown(TOKENS, by=2)
    last = read_of_rows(found, Geometry((2,), (7,), 6))
    np.testing.assert_array_equal(of(last), TOKENS[:, 6])
    few = read_of_rows(found, Geometry((2, 3), (7, 1), 2))
    np.testing.assert_array_equal(of(few), TOKENS[:, 2:5])
    kept = read_of_rows(found, Geometry((2, 1), (7, 1), 0))
    np.testing.assert_array_equal(of(kept), TOKENS[:, :1])
    assert found.buffer is None  # the value itself was not needed


@pytest.mark.parametrize(
    "view",
    [
        Geometry((2, 7), (7, 1)), Geometry((7, 2), (1, 7)), Geometry((1, 3), (7, 1)), Geometry((2, 2), (7, 2)),
        Geometry((2, 2), (7, 1), 6), Geometry((2,), (1,)), Geometry((2, 0), (7, 1)),
    ],
    ids=["all", "transposed", "fewer rows", "every other", "over the end", "along a row", "nothing"],
)  # fmt: skip
def test_other_views_are_not(view: Geometry) -> None:
    found = grown(TOKENS)
    assert read_of_rows(found, view) is None


def test_it_is_padded_to_a_width() -> None:
    found = grown(TOKENS)
    expected = np.pad(TOKENS, [(0, 0), (0, 3)], constant_values=-1)
    np.testing.assert_array_equal(of(padded(found, 10, -1)), expected)


def test_kinds_that_were_seen_once_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_capacity, "_MOST_KINDS", 3)
    for rows in range(1, 9):
        assert appended(value(np.ones((rows, 2), np.int64)), value(np.ones((rows, 1), np.int64))) is None
    assert len(spare_capacity._lengths) <= 3
