"""Callbacks and events for computed values."""

import threading
from collections.abc import Callable

import torch

from .._engine import step, transfer


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[torch.Tensor], None]) -> None:
    """Start the computation of `tensor`, and call `callback(tensor)` in another thread when its value is ready.

    >>> import threading, torch, torch_xla
    >>> from torch_xla.experimental.callback import on_ready_callback
    >>> ready = threading.Event()
    >>> on_ready_callback(torch.ones(2, device="xla") + 1, lambda tensor: ready.set())
    >>> ready.wait(10)
    True
    """
    transfer.call_when_ready(step.on_xla(tensor), lambda: callback(tensor))


def on_ready_event(tensor: torch.Tensor) -> threading.Event:
    """Start the computation of `tensor`, and return an event that is set when its value is ready."""
    ready = threading.Event()
    transfer.call_when_ready(step.on_xla(tensor), ready.set)
    return ready
