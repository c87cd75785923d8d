"""A number that changed in an earlier graph is an argument of a new one from the start."""

import pytest
import torch

import torch_xla
from torch_xla._engine.compile import changing_numbers
from torch_xla._engine.ir.graph import Graph
from torch_xla._engine.step import pending_graph


@pytest.fixture(autouse=True)
def no_numbers_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_numbers, "_seen_numbers", {})


def scaled(*scales: float) -> Graph:
    y = torch.ones(3).to("xla")
    torch_xla.sync()
    for scale in scales:
        y = y * scale
    return pending_graph.graph_of([y]).graph


def test_only_a_number_that_was_another_one_before_is_known_to_change() -> None:
    assert changing_numbers.known_to_change(scaled(2.0, 5.0), (2.0, 5.0), ()) == []
    assert changing_numbers.known_to_change(scaled(2.0, 7.0), (2.0, 7.0), ()) == [1]


def test_numbers_in_another_place_are_not_compared() -> None:
    assert changing_numbers.known_to_change(scaled(2.0), (2.0,), ()) == []
    assert changing_numbers.known_to_change(scaled(2.0, 9.0), (2.0, 9.0), ()) == []
