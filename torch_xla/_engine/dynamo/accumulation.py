"""Gradients summed over slices of a batch by a loop on the device: memory for one slice's activations, one program."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from ..private.dynamo import default_partition
from .scanning import run, trace, trace_by_itself


class _Step(nn.Module):
    """A step as a module that contains the model, so that the model's parameters can be exchanged for the call."""

    def __init__(self, model: nn.Module, step: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self._step = step

    def forward(self, *args: Any) -> Any:
        return self._step(*args)


def accumulate(
    step: Callable[..., Any], slices: Sequence[torch.Tensor], model: nn.Module, carried: Sequence[torch.Tensor]
) -> Any:
    """Calls `step` for each slice, adds the gradients to those of the model, and gives the sum of the losses."""
    own = {f"model.{name}": each for name, each in model.named_parameters() if each.requires_grad}
    module = _Step(model, step)

    def once(carry: Any, given: Any) -> Any:
        total, sums, state = carry
        with torch.enable_grad():
            fresh = {name: each.detach().requires_grad_() for name, each in own.items()}
            found = functional_call(module, fresh, (*given, *state))
            loss, *rest = found if isinstance(found, tuple | list) else (found,)
            _check(loss, rest, state)
            grads = torch.autograd.grad(loss, list(fresh.values()), allow_unused=True)
        added = [each if grad is None else each + grad for each, grad in zip(sums, grads, strict=True)]
        return (total + loss.detach(), added, [each.detach() for each in rest]), []

    with torch.no_grad():
        start = [torch.zeros_like(each) for each in own.values()]
        init = (torch.zeros((), device=slices[0].device), start, list(carried))
        recipe = trace(once, init, list(slices))
        trace_by_itself(recipe, init, list(slices))
        (total, sums, state), _ = run(recipe, init, list(slices), default_partition)
        for parameter, grad in zip(own.values(), sums, strict=True):
            parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
    return (total, *state) if carried else total


def _check(loss: Any, rest: Sequence[Any], state: Sequence[Any]) -> None:
    if not isinstance(loss, torch.Tensor) or loss.dim():
        came = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ValueError(f"train_step returns a loss without dimensions first; got {came}")
    if len(rest) != len(state):
        raise ValueError(
            f"train_step returns the loss and each of the {len(state)} carried tensors; got {len(rest)} behind the loss"
        )
