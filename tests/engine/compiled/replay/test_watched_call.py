"""One watched call, in terms that a replay can use: what it read, wrote and returned."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import torch_xla
from tests.support.watched_calls import facts_of
from torch_xla._engine.compiled.replay.watched_call import inputs_of


def tensor(*numbers: float) -> torch.Tensor:
    x = torch.tensor(numbers).to("xla")
    torch_xla.sync()
    return x


def test_where_each_input_came_from_and_each_result_went() -> None:
    seen, argument = tensor(1.0, 2.0), tensor(3.0, 4.0)

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.add_(x)
        return seen * x

    facts = facts_of(function, argument)
    assert not facts.reasons
    assert [(place.path, place.argument) for place in facts.places] == [("argument 0", 0), ("seen", -1)]
    assert sorted(facts.sources.values()) == [0, 1] and set(facts.sinks) == {1} and len(facts.new) == 1
    assert [(each.tensor is seen, each.count) for each in facts.written] == [(True, 1)]
    assert [slot for slot, _ in inputs_of(facts.code)] == sorted(facts.sources)
    assert facts.schedule is not None and facts.returned is not None and not facts.returned.owners


def test_a_gradient_that_is_made_or_added_to_is_told() -> None:
    weight = tensor(1.0, 2.0).requires_grad_()

    def backward() -> None:
        (weight * weight).sum().backward()

    facts = facts_of(backward)
    assert facts.leaves == [weight] and facts.had_gradient == [True] and facts.gradients == ["the same"]

    def anew() -> None:
        weight.grad = None
        (weight * weight).sum().backward()

    facts = facts_of(anew)
    assert facts.gradients == ["new"] and not facts.reasons

    def none() -> torch.Tensor:
        weight.grad = None
        return weight.detach() * 2

    assert facts_of(none).gradients == ["none"]


held: list[Any] = []
state = {"steps": 0}


def keeps(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    held.append(y)
    return y + 1


def counts(x: torch.Tensor) -> torch.Tensor:
    state["steps"] += 1
    return x * 2


def reads_back(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def given_back(x: list[torch.Tensor]) -> torch.Tensor:
    x.append(x[0])
    return x[0] * 2


@pytest.mark.parametrize(
    ("function", "make", "text"),
    [
        (counts, lambda: tensor(1.0), "it changes state['steps']"),
        (keeps, lambda: tensor(1.0), "it changes held"),
        (reads_back, lambda: tensor(1.0), "it reads a value on the host"),
        (given_back, lambda: [tensor(1.0)], "it changes a list or dictionary that it was given"),
        (lambda x: 1, lambda: tensor(1.0), "it computes nothing on the device"),
        (lambda x: torch_xla.manual_seed(3) or torch.rand_like(x), lambda: tensor(1.0), "it seeds the device"),
    ],
    ids=range(6),
)
def test_what_cannot_be_replayed_has_its_reason(function: Any, make: Any, text: str) -> None:
    reasons = facts_of(function, make()).reasons
    assert any(each.startswith(text) for each in reasons), reasons


def name_it(x: torch.Tensor, y: torch.Tensor) -> None:
    x.name_of_mine = "x"  # type: ignore[attr-defined]


CHANGED_ARGUMENTS: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], object], str]] = {
    "transpose_": (lambda x, y: x.transpose_(0, 2), "shape or strides"),
    "swapaxes_": (lambda x, y: x.swapaxes_(0, 2), "shape or strides"),
    "unsqueeze_": (lambda x, y: x.unsqueeze_(0), "shape or strides"),
    "squeeze_": (lambda x, y: x.squeeze_(), "shape or strides"),
    "as_strided_": (lambda x, y: x.as_strided_((2,), (1,), 1), "shape or strides"),
    "resize_": (lambda x, y: x.resize_(1, 2), "shape or strides"),
    "resize_as_": (lambda x, y: x.resize_as_(y[0]), "shape or strides"),
    "data": (lambda x, y: setattr(x, "data", y), "memory"),
    "attribute": (name_it, "attributes"),
    "grad": (lambda x, y: setattr(x, "grad", y), "gradient"),
    "requires_grad_": (lambda x, y: x.requires_grad_(), "need of a gradient"),
    "product": (lambda x, y: x.mul_(y.requires_grad_()), "need of a gradient"),
}


def state_of(x: torch.Tensor) -> tuple[object, ...]:
    gradient = x.grad.tolist() if x.is_leaf and x.grad is not None else None
    return x.shape, x.stride(), x.storage_offset(), x.requires_grad, dict(x.__dict__), gradient, x.detach().tolist()


@pytest.mark.parametrize("name", CHANGED_ARGUMENTS)
@pytest.mark.parametrize("inside", ["list", "argument"])
def test_a_change_of_an_argument_is_made_in_each_call(name: str, inside: str) -> None:
    change, what = CHANGED_ARGUMENTS[name]

    def function(*given: Any) -> torch.Tensor:
        x, y = given[0] if inside == "list" else given
        total = (2 * x.detach() + y.detach()).sum()
        change(x, y)
        return total

    def given(number: int, device: str) -> list[Any]:
        pair = [(torch.ones(2, 1, 3) * number).to(device), torch.full((2, 1, 3), 0.5).to(device)]
        torch_xla.sync()
        return [pair] if inside == "list" else pair

    def calls(function: Any, device: str) -> list[object]:
        states = []
        for number in range(5):
            pair = given(number, device)
            total = function(*pair)
            x, y = pair[0] if inside == "list" else pair
            states.append((total.item(), state_of(x), state_of(y)))
        return states

    compiled = torch_xla.compile(function, replay=True)
    assert calls(compiled, "xla") == calls(function, "cpu")
    assert f"it changes the {what} of argument " in compiled.why_recorded


def test_a_constant_is_kept_as_it_was_uploaded() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0, 5.0]).to("xla")

    facts = facts_of(function, tensor(1.0, 2.0))
    (constant,) = [each for each in facts.sources.values() if isinstance(each, np.ndarray)]
    assert constant.tolist() == [1.0, 5.0] and not facts.reasons
