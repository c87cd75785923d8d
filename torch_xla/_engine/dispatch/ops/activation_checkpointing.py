"""Keep the compiler from undoing PyTorch's activation checkpointing.

A checkpoint computes the forward pass again during the backward pass, instead of saving its values. A program of the
whole step contains both computations, and XLA would merge them: no memory would be saved. So the second computation
starts from copies of its inputs that the compiler treats as new values, which exist only once the backward pass has
reached them.
"""

from collections.abc import Callable
from typing import Any

import torch

from ...compat import patch_list
from ...tensor import delayed_by_barrier


def patch_checkpoints() -> None:
    """Delay the inputs of every recomputation on `xla`."""
    patch_list.checkpoint_frame.wrap(_isolating)
    patch_list.detach_variable.wrap(_detaching)


def _isolating(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: object, recompute: Callable[..., object], *args: object, **kwargs: object) -> None:  # noqa: N807
        def recompute_fn(*inputs: object) -> object:
            return recompute(*_isolated(inputs))

        original(self, recompute_fn, *args, **kwargs)

    return __init__


def _detaching(original: Callable[..., object]) -> Callable[..., object]:
    def detach_variable(inputs: object) -> object:
        return original(_isolated(inputs) if isinstance(inputs, tuple) else inputs)

    return detach_variable


def _isolated(inputs: tuple[Any, ...]) -> tuple[object, ...]:
    places = [i for i, each in enumerate(inputs) if isinstance(each, torch.Tensor) and each.device.type == "xla"]
    result = list(inputs)
    for place, copy in zip(places, delayed_by_barrier([inputs[place] for place in places]), strict=True):
        differentiable = inputs[place].requires_grad
        result[place] = copy.requires_grad_(differentiable) if differentiable else copy
    return tuple(result)
