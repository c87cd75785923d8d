"""The arguments of a call: equal keys where a replay may take one call for another, and others where it may not."""

import functools
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from torch_xla._engine.compiled.replay.argument_spec import Call, taken_apart

Pair = namedtuple("Pair", "left right")


def call(*args: Any, **kwargs: Any) -> Call:
    return taken_apart(args, kwargs)


def ones(*size: int, **options: Any) -> torch.Tensor:
    return torch.ones(size, device="xla", **options)


def bound(x: Any) -> Any:
    return x


EQUAL = [
    lambda: (1, 2.5, True, None, "a", b"a", 1j, torch.float32, torch.device("cpu"), torch.Size([1]), range(3)),
    lambda: ([1, (2, 3)], {"a": [4]}, Pair(1, [2])),
    lambda: (float("nan"), -0.0),
    lambda: (np.float32(2), np.int64(3)),
    lambda: (slice(0, 3), slice(None, None, 2)),
    lambda: (functools.partial(bound, 1),),
    lambda: (ones(2, 3), [ones(4)]),
]


@pytest.mark.parametrize("make", EQUAL, ids=range(len(EQUAL)))
def test_calls_that_are_alike_have_equal_keys(make: Any) -> None:
    one, other = call(*make()), call(*make())
    assert one.key == other.key and hash(one.key) == hash(other.key) and not one.hindrance
    assert call(*make(), x=1).key != one.key


OTHERS: list[list[Any]] = [
    [1, 1.0, True, 1 + 0j, "1", b"1", np.float32(1), np.float64(1), None],
    [0.0, -0.0, 0],
    [(1, 2), [1, 2], Pair(1, 2), {"left": 1, "right": 2}, {"right": 2, "left": 1}, ((1,), 2), (1, (2,))],
    [{1: 2}, {1.0: 2}, {True: 2}],
    [{0.0: 2}, {-0.0: 2}],
    [range(0, 10, 3), range(0, 12, 3)],
    [np.datetime64(1, "D"), np.datetime64(1, "s")],
    [slice(0, 3), slice(0, 4), slice(0, 3, 1), slice(0.0, 3)],
    [functools.partial(bound, 1), functools.partial(bound, 2), functools.partial(bound, x=1), bound],
    [[], (), {}, [[]]],
]


@pytest.mark.parametrize("others", OTHERS, ids=range(len(OTHERS)))
def test_calls_that_are_not_alike_have_other_keys(others: list[Any]) -> None:
    assert len({call(each).key for each in others}) == len(others)
    assert len({call(x=each).key for each in others}) == len(others)


def test_tensors_are_told_by_their_geometry() -> None:
    x = ones(2, 3)
    others = [x, ones(3, 2), ones(6), ones(3, 2).t(), ones(3, 3)[1:], ones(2, 3, dtype=torch.int32)]
    with torch.inference_mode():
        others.append(ones(2, 3))
    assert len({call(each).key for each in others}) == len(others)
    assert call(x).tensors == [x] and call([x], {"a": x}).tensors == [x, x]


def test_what_is_shared_among_arguments_counts() -> None:
    x, y, some = ones(4), ones(4), [1]
    assert len({call(*pair).key for pair in [(x, x), (x, x.view(4)), (x, y)]}) == 3
    assert call(x[:2], x[2:]).key == call(y[:2], y[2:]).key
    assert call(some, some).key != call([1], [1]).key == call([1], [1]).key


def test_other_objects_are_known_by_what_they_are_and_stay_alive() -> None:
    one, other = object(), object()
    assert call(one).key == call(one).key != call(other).key
    assert call(one).objects == [one]
    some = [3]
    assert call(some.append).objects == [some, some.append.__self__] or call(some.append).objects
    found = call({"a": [1]}, (2,))
    assert found.containers == [{"a": [1]}, [1], (2,)]


def test_what_can_never_be_replayed_is_said() -> None:
    class Own(torch.Tensor):
        pass

    marked, complex_ = ones(2), ones(2, dtype=torch.complex64)
    marked.mark = 1  # type: ignore[attr-defined]
    cases = {
        "a tensor on the CPU: move it to the device": torch.ones(2),
        "requires a gradient": ones(2, requires_grad=True),
        "with attributes": marked,
        "conjugate or negative view": complex_.conj(),
        "a tensor of class": ones(2).as_subclass(Own),
    }
    for text, argument in cases.items():
        assert text in call(argument).hindrance and text in call([argument]).hindrance, text
