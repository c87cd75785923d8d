"""Tensors inside Python objects are found and replaced; everything else stays as it is."""

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from torch_xla._engine.pytree.nested import ToXlaTensorArena, collected, replaced

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Batch:
    images: torch.Tensor
    name: str


def is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point()


def negated(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [-tensor for tensor in tensors]


def test_every_kind_of_container_is_looked_into_and_keeps_its_type() -> None:
    x = torch.ones(2)
    data = {
        "list": [x, 1],
        "tuple": (x, "text"),
        "pair": Pair(x, None),
        "batch": Batch(x, "first"),
        "user": UserDict(inner=x),
        "default": defaultdict(int, a=x),
        "ordered": OrderedDict(a=x),
    }
    result = replaced(data, is_float, negated)
    for found in (
        result["list"][0],
        result["tuple"][0],
        result["pair"].first,
        result["batch"].images,
        result["user"]["inner"],
        result["default"]["a"],
        result["ordered"]["a"],
    ):
        assert torch.equal(found, -x)
    assert {name: type(value) for name, value in result.items()} == {name: type(v) for name, v in data.items()}
    assert result["default"].default_factory is int
    assert result["batch"].name == "first"
    assert data["list"][0] is x and data["batch"].images is x and data["user"]["inner"] is x


def test_tensors_in_sets_are_replaced() -> None:
    (found,) = replaced({torch.ones(1)}, is_float, negated)
    assert found.item() == -1


def test_what_holds_no_chosen_tensor_is_shared_and_not_copied() -> None:
    plain = [1, torch.tensor(1), object()]
    data = [plain, torch.ones(1)]
    result = replaced(data, is_float, negated)
    assert result is not data and result[0] is plain
    assert replaced(plain, is_float, negated) is plain


def test_a_tensor_that_comes_twice_is_converted_once_and_stays_one() -> None:
    calls: list[int] = []

    def convert(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        calls.append(len(tensors))
        return negated(tensors)

    x = torch.ones(1)
    result = replaced([x, {"again": x}], is_float, convert)
    assert calls == [1]
    assert result[0] is result[1]["again"]


def test_containers_in_a_circle_stay_in_a_circle() -> None:
    data: list[Any] = [torch.ones(1)]
    data.append({"back": data})
    result = replaced(data, is_float, negated)
    assert result[1]["back"] is result
    assert result[0].item() == -1 and data[0].item() == 1


def test_the_metadata_of_a_state_dict_survives() -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    result = replaced(state, is_float, negated)
    assert result._metadata == state._metadata  # type: ignore[attr-defined]
    assert list(result) == list(state)


def test_dictionaries_that_forbid_updates_can_be_rewritten() -> None:
    class Output(OrderedDict):
        """As the outputs of models are: items may be set, and nothing else."""

        def update(self, *args: object, **kwargs: object) -> None:
            raise TypeError("no updates")

    output = Output()
    output["logits"] = torch.ones(1)
    result = replaced([output], is_float, negated)[0]
    assert type(result) is Output and result["logits"].item() == -1


def test_a_module_is_copied_as_far_as_it_holds_tensors() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    result = replaced(model, is_float, lambda tensors: [torch.nn.Parameter(tensor.detach() * 0) for tensor in tensors])
    assert result is not model and result[1] is model[1]
    assert result(torch.ones(1, 2)).abs().sum().item() == 0
    assert model[0].weight.abs().sum().item() > 0


def test_tensors_are_found_in_order() -> None:
    tensors = [torch.tensor(float(i)) for i in range(4)]
    data = {"b": [tensors[0], (tensors[1],)], "a": tensors[2], "c": [tensors[3], tensors[0]]}
    assert [tensor.item() for tensor in collected(data, lambda _: True)] == [0, 1, 2, 3]


def test_a_conversion_that_loses_tensors_is_refused() -> None:
    with pytest.raises(ValueError, match="^1 tensors were to be converted, and 0 came back$"):
        replaced([torch.ones(1)], is_float, lambda _: [])


def test_an_arena_converts_what_its_test_accepts() -> None:
    arena = ToXlaTensorArena(negated, is_float)
    ones, three = arena.transform((torch.ones(1), torch.tensor(3)))
    assert (ones.item(), three.item()) == (-1, 3)
