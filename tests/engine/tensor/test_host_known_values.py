"""Tensors with a few elements that the host knows, and the reports of reading them."""

import pytest
import torch

from torch_xla._engine.tensor import host_known_values as known
from torch_xla._engine.tensor.host_known_values import Asked, contents_of, known_numbers
from torch_xla._engine.tensor.storage import value_of


def test_what_came_from_the_host_is_known_until_the_device_computes_it() -> None:
    x = torch.tensor([3, 1]).to("xla")
    numbers = known_numbers(x)
    assert numbers is not None and numbers.tolist() == [3, 1] and contents_of(value_of(x)) is numbers
    assert known_numbers(x + 1) is None and known_numbers(torch.ones(65).to("xla")) is None
    assert known_numbers(torch.tensor([3, 1])) is None and known_numbers(3) is None and known_numbers(None) is None
    x.add_(1)
    assert known_numbers(x) is None


def test_onlookers_are_told_whether_or_not_the_host_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(known, "onlookers", [lambda value, asked: told.append((value, asked))])
    x, y = torch.tensor([3, 1]).to("xla"), torch.tensor([3, 1]).to("xla") * 2
    known_numbers(x, Asked.EACH)
    known_numbers(y)
    contents_of(value_of(x))
    assert told == [(value_of(x), Asked.EACH), (value_of(y), Asked.TOGETHER)]
