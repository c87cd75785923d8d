"""Gradients of a batch slice by slice, in a loop on the device: the memory of one slice's activations, one program."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._engine.compiled.loops import accumulation_loop
from ..core.builder_parameters import Parameters


@dataclass
class GradientAccumulationContext:
    """How many steps a loop takes, how many tensors it slices, and how many it carries."""

    num_gradient_steps: int
    num_iterable_tensors: int
    num_carried_tensors: int


class XlaBuildHelper:
    """The parameters of a computation that is being built, with the tensors that they stand for.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.gradient_accumulation import XlaBuildHelper
    >>> helper = XlaBuildHelper("mine")
    >>> helper.add_param(torch.ones(2, device="xla")), helper.num_params, helper.params[0].shape()
    (0, 1, f32[2])
    """

    def __init__(self, name: str) -> None:
        self._parameters = Parameters(name)

    def add_param(self, val: torch.Tensor, idx: int | None = None) -> int:
        """Adds a parameter of the size and dtype of `val`, numbered `idx` or as the next; gives its number."""
        return self._parameters.add_param(val, idx)

    @property
    def params(self) -> tuple[Any, ...]:
        """The parameters."""
        return self._parameters.params()

    @property
    def param_tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors."""
        return self._parameters.param_tensors()

    @property
    def num_params(self) -> int:
        """How many there are."""
        return self._parameters.num_params()


def gradient_accumulation(
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[torch.Tensor],
    model: torch.nn.Module,
    *carried_tensors: torch.Tensor,
    is_step_pure: bool = False,
) -> Any:
    """Calls `train_step(*slices, *carried)` for each slice of the tensors along their first dimension, on the device.

    `train_step` returns the loss (a tensor without dimensions), and behind it what becomes of each of
    `carried_tensors`, if there are any. It does not call `backward`. Each loss is divided by the number of slices: the
    result is the mean of the losses, and its gradients are added to `parameter.grad`. What the carried tensors became
    is behind the loss in the result. Do not divide in `train_step`. Dropout differs from slice to slice, and buffers
    of the model that a step writes to are written. Hooks of parameters see the gradient of each slice; those that run
    after a gradient was added to `parameter.grad` run once. A parameter that the loss does not depend on keeps the
    `grad` it has, be it None; so do all of them under `torch.no_grad()`, where there are only the losses.

    With `is_step_pure`, `train_step` is traced once for each kind of arguments, else at every call: it must do nothing
    but compute, and a function that is made anew is taken for the same if its code and what it closes over are.

    Raises `ValueError` for tensors of unequal lengths, or what `train_step` must not return.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.gradient_accumulation import gradient_accumulation
    >>> model = torch.nn.Linear(4, 1).to("xla")
    >>> batch = torch.ones(3, 8, 4, device="xla")  # three slices of eight rows
    >>> loss = gradient_accumulation(lambda x: model(x).square().mean(), (batch,), model)
    >>> torch.allclose(loss, model(batch).square().mean()), model.weight.grad.shape
    (True, torch.Size([1, 4]))
    """
    lengths = {tuple(each.shape[:1]) for each in iterable_tensors}
    if len(lengths) != 1 or lengths in ({()}, {(0,)}):
        shapes = ", ".join(str(list(each.shape)) for each in iterable_tensors) or "none"
        raise ValueError(
            f"gradient_accumulation() takes tensors of one length along their first dimension; got {shapes}"
        )
    return accumulation_loop.accumulate(train_step, list(iterable_tensors), model, carried_tensors, is_step_pure)
