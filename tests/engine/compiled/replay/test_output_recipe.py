"""The results of a function are rebuilt from other values."""

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from torch_xla._engine.compiled.replay.output_recipe import Returned, Unreturnable

Pair = namedtuple("Pair", "left right")


def ones(*size: int, **options: Any) -> torch.Tensor:
    return torch.ones(size, device="xla", **options)


def returned(result: Any, places: Sequence[torch.Tensor] = (), known: Sequence[Any] = (), given: Any = ()) -> Returned:
    """Of a function that saw `known`, and whose memory that outlives the call is that of `places`."""

    def owner_of(tensor: torch.Tensor) -> tuple[int, torch.Tensor] | None:
        for place, each in enumerate(places):
            if each.untyped_storage() is tensor.untyped_storage():
                return place, each
        return None

    return Returned(result, owner_of, {id(each): each for each in known}, {id(each) for each in given})


PLAIN = [
    None, 1, 2.5, "a", torch.float32, (), [], {}, [1, (2, [3])], {"a": [1], 2: (3,)}, Pair(1, [2]),
    OrderedDict(b=1, a=2), defaultdict(list, a=[1]), torch.Size([2]), range(3),
]  # fmt: skip


@pytest.mark.parametrize("result", PLAIN, ids=str)
def test_what_holds_no_tensor_is_made_again(result: Any) -> None:
    found = returned(result)
    made = found.make({})
    assert made == result and type(made) is type(result)
    if isinstance(result, (list, dict)):
        assert made is not result and found.make({}) is not made
    assert returned(result).structure == found.structure
    if isinstance(result, defaultdict):
        assert made["new"] == []


def test_structures_tell_results_apart() -> None:
    results: list[Any] = [1, 1.0, True, (1,), [1], {"a": 1}, {"b": 1}, OrderedDict(a=1), 0.0, -0.0, Pair(1, 2), (1, 2)]
    structures = [returned(each).structure for each in results]
    assert all(one != other for i, one in enumerate(structures) for other in structures[:i])


def test_new_memory_is_returned_as_it_is_and_views_of_it_are_views() -> None:
    x = ones(4)
    found = returned({"all": x, "again": x, "part": x[1:3]})
    assert list(found.storages.values()) == [x]
    new = torch.arange(4.0).to("xla")
    made = found.make({(0, "new"): new})
    assert made["all"] is new and made["again"] is new
    assert made["part"].tolist() == [1.0, 2.0]
    assert made["part"].untyped_storage() is new.untyped_storage()


def test_two_tensors_of_one_memory_are_two() -> None:
    x = ones(4)
    found = returned([x, x.detach()])
    one, other = found.make({(0, "new"): torch.arange(4.0).to("xla")})
    assert one is not other and one.untyped_storage() is other.untyped_storage()
    assert one.tolist() == other.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_memory_that_outlives_the_call_is_itself_or_a_view_of_it() -> None:
    place = ones(2, 3)
    found = returned([place, place.t()], places=[place])
    assert found.owners == {0} and not found.storages
    now = torch.arange(6.0).reshape(2, 3).to("xla")
    same, view = found.make({0: now})
    assert same is now and view.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert view.untyped_storage() is now.untyped_storage()


def test_what_the_function_sees_is_returned_itself() -> None:
    thing, seen = object(), ones(2)
    made = returned([thing, seen], known=[thing, seen]).make({})
    assert made[0] is thing and made[1] is seen


def test_nothing_of_the_call_stays() -> None:
    found = returned([ones(2)])
    assert not {"_owner_of", "_known", "_given"} & vars(found).keys()


class Own(torch.Tensor):
    pass


def bad() -> dict[str, Any]:
    marked, some = ones(2), [1]
    marked.mark = 1  # type: ignore[attr-defined]
    return {
        "a tensor on the CPU": torch.ones(2),
        "could still be differentiated": ones(2, requires_grad=True) * 2,
        "as another dtype": ones(2).view(torch.int32),
        "conjugate or negative view": ones(2, dtype=torch.complex64).conj(),
        "a class of its own, or with attributes": marked,
        "an object of class object": object(),
        "one list or dictionary in two places": [some, some],
        "objects for keys": {object(): 1},
        "an object of class set": {1},
    }


@pytest.mark.parametrize("text", bad())
def test_what_cannot_be_made_again_is_said(text: str) -> None:
    with pytest.raises(Unreturnable, match=text):
        returned(bad()[text])
    with pytest.raises(Unreturnable, match=text):
        returned([1, {"a": bad()[text]}])


def test_what_was_given_is_not_returned() -> None:
    given = [1]
    with pytest.raises(Unreturnable, match="that it was given: return a new one"):
        returned((given,), given=[given])
    with pytest.raises(Unreturnable, match="a class of its own"):
        returned(ones(2).as_subclass(Own))
