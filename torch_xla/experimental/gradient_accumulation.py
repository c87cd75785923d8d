"""Accumulate gradients over the slices of a batch in a loop on the device, with one slice's activations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._engine.compiled.loops import accumulation_loop
from ..core.builder_parameters import Parameters


@dataclass
class GradientAccumulationContext:
    """The number of steps of a loop, of the tensors that it slices, and of the tensors that it carries."""

    num_gradient_steps: int
    num_iterable_tensors: int
    num_carried_tensors: int


class XlaBuildHelper:
    """The parameters of a computation that is being built, and the tensors that they represent.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.gradient_accumulation import XlaBuildHelper
    >>> helper = XlaBuildHelper("mine")
    >>> helper.add_param(torch.ones(2, device="xla")), helper.num_params, helper.params[0].shape()
    (0, 1, f32[2])
    """

    def __init__(self, name: str) -> None:
        self._parameters = Parameters(name)

    def add_param(self, val: torch.Tensor, idx: int | None = None) -> int:
        """Add a parameter with the size and dtype of `val`, with the next number or `idx`, and return its number."""
        return self._parameters.add_param(val, idx)

    @property
    def params(self) -> tuple[Any, ...]:
        """Return the parameters."""
        return self._parameters.params()

    @property
    def param_tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors."""
        return self._parameters.param_tensors()

    @property
    def num_params(self) -> int:
        """Return the number of parameters."""
        return self._parameters.num_params()


def gradient_accumulation(
    train_step: Callable[..., object],
    iterable_tensors: Sequence[torch.Tensor],
    model: torch.nn.Module,
    *carried_tensors: object,
    is_step_pure: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Call `train_step(*slices, *carried)` for each slice of the tensors along their first dimension, on the device.

    `train_step` returns the loss (a tensor without dimensions), followed by the next value of each of `carried_tensors`
    (tensors or numbers). It must not call `backward`, divide the loss or change its arguments in place. Each loss is
    divided by the number of slices: the result is the mean of the losses, followed by the last values of the carried
    tensors. The gradients of the mean are added to `parameter.grad`. Dropout differs from slice to slice, and a step
    may write to buffers of the model. Hooks of parameters receive the gradient of each slice; hooks after the
    accumulation into `parameter.grad` run once. A parameter that the loss does not depend on keeps its `grad`, even if
    it is None. Under `torch.no_grad()`, only the losses are computed.

    With `is_step_pure`, `train_step` is traced once for each kind of arguments, otherwise at every call. A pure step
    must only compute. A new function with the same code and closure counts as the same step.

    Raises `ValueError` for tensors of unequal lengths, and for invalid results of `train_step`; `RuntimeError` if it
    changes its arguments.

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
