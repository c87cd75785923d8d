"""One watched call, in terms that a replay can use: what it read, wrote and returned."""

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


def test_a_constant_is_kept_as_it_was_uploaded() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0, 5.0]).to("xla")

    facts = facts_of(function, tensor(1.0, 2.0))
    (constant,) = [each for each in facts.sources.values() if isinstance(each, np.ndarray)]
    assert constant.tolist() == [1.0, 5.0] and not facts.reasons
