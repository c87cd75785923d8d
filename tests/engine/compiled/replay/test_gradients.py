"""A replay reads and leaves the same gradients as a recorded call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met


def weight() -> torch.Tensor:
    return torch.tensor([1.0, 2.0], device="xla").requires_grad_()


def replays() -> int:
    return met.counter_value("ReplayedStep") or 0


def adds(w: torch.Tensor) -> Callable[[torch.Tensor], Any]:
    return lambda x: (w * x).sum().backward()


def makes(w: torch.Tensor) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> None:
        w.grad = None
        (w * x).sum().backward()

    return step


def clears(w: torch.Tensor) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> None:
        (w * x).sum().backward()
        with torch.no_grad():
            w.sub_(w.grad)  # type: ignore[arg-type]
        w.grad = None

    return step


@pytest.mark.parametrize("make", [adds, makes, clears])
def test_gradients_are_those_of_the_cpu(make: Any) -> None:
    ours, theirs = weight(), weight().detach().cpu().requires_grad_()
    replayed, plain = torch_xla.compile(make(ours), replay=True), make(theirs)
    for number in range(7):
        x = torch.tensor([number + 1.0, 2.0])
        replayed(x.to("xla"))
        plain(x)
        assert (ours.grad is None) == (theirs.grad is None)
        if theirs.grad is not None and ours.grad is not None:
            assert ours.grad.tolist() == theirs.grad.tolist()
    assert replays() >= 3 and ours.tolist() == theirs.tolist()


def test_a_gradient_that_somebody_keeps_is_not_written_over() -> None:
    w = weight()
    step = torch_xla.compile(makes(w), replay=True)
    kept: list[Any] = []
    for number in range(8):
        step(torch.full((2,), float(number)).to("xla"))
        if number % 2 == 0:
            kept.append(w.grad)
    assert replays() >= 4
    assert [each.tolist() for each in kept] == [[float(number)] * 2 for number in (0, 2, 4, 6)]
    assert len({id(each) for each in kept}) == 4


def test_a_gradient_that_nobody_keeps_is_the_same_memory_again() -> None:
    w = weight()
    step = torch_xla.compile(makes(w), replay=True)
    seen = set()
    for number in range(8):
        step(torch.full((2,), float(number)).to("xla"))
        if number > 5:
            assert w.grad is not None
            seen.add(id(w.grad.untyped_storage()))
    assert len(seen) == 1 and replays() >= 4


@pytest.mark.filterwarnings("ignore:.*is recorded this time")
def test_a_gradient_of_another_form_is_recorded_anew() -> None:
    w = weight()
    step = torch_xla.compile(adds(w), replay=True)
    x = torch.ones(2).to("xla")
    for _ in range(6):
        step(x)
    w.grad = None  # it was there: another kind of call
    step(x)
    assert w.grad is not None and w.grad.tolist() == [1.0, 1.0]
    w.grad = torch.ones(4).to("xla")[1:3]
    step(x)
    assert w.grad.tolist() == [2.0, 2.0]
