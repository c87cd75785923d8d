"""Activation checkpointing: recompute values in the backward pass instead of keeping them."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.utils.checkpoint
from torch.utils.checkpoint import CheckpointFunction as CheckpointFunction
from torch.utils.checkpoint import get_device_states as get_device_states
from torch.utils.checkpoint import set_device_states as set_device_states

from .._engine.compat import removed_names

R = TypeVar("R")

__getattr__ = removed_names.asked_of(__name__)


def checkpoint(function: Callable[..., R], *args: Any, use_reentrant: bool = True, **kwargs: Any) -> R:
    """Call `function(*args)` and keep only `args`; the backward pass calls `function` a second time.

    This is `torch.utils.checkpoint.checkpoint`, and saves as much memory: both keep the compiler from merging the
    second call with the first. Both calls draw the same random numbers. The keywords, including `use_reentrant`, are
    PyTorch's.

    >>> import torch, torch_xla
    >>> from torch_xla.utils.checkpoint import checkpoint
    >>> x = torch.ones(3, device="xla", requires_grad=True)
    >>> checkpoint(lambda t: t.sin().exp(), x).sum().backward()
    >>> round(x.grad[0].item(), 4)
    1.2534
    """
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
