"""What is compiled: a named step, and what its plan must be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_xla.debug import StepPlan


@dataclass(frozen=True)
class Case:
    """A step, and a function that raises `AssertionError` if its plan is not as it must be.

    With a `rank` it is the step of that process among as many as there are devices.
    """

    name: str
    step: Callable[[], Any]
    check: Callable[[StepPlan], None] = lambda plan: None
    steps: int = 1
    devices: int = 1
    rank: int | None = None


def training(model: nn.Module, inputs: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """Return a step of AdamW on a model."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(inputs()).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def has(*kinds: str) -> Callable[[StepPlan], None]:
    """Return a check that one of these kinds of collectives is in a plan."""

    def check(plan: StepPlan) -> None:
        found = {each.kind for program in plan.programs for each in program.work.collectives}
        assert found & set(kinds), f"none of {', '.join(kinds)} among {', '.join(found) or 'no collectives'}"

    return check
