"""Being told when a value has been computed."""

import threading
from collections.abc import Callable

import torch

from .._engine.step import pending_graph
from .._engine.transfer import batch_reads


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[torch.Tensor], None]) -> None:
    """Starts the computation of `tensor`, and calls `callback(tensor)` in another thread when its value is there.

    >>> import threading, torch, torch_xla
    >>> from torch_xla.experimental.callback import on_ready_callback
    >>> told = threading.Event()
    >>> on_ready_callback(torch.ones(2, device="xla") + 1, lambda tensor: told.set())
    >>> told.wait(10)
    True
    """
    batch_reads.call_when_ready(pending_graph.on_xla(tensor), lambda: callback(tensor))


def on_ready_event(tensor: torch.Tensor) -> threading.Event:
    """Starts the computation of `tensor`; the event is set when its value is there."""
    ready = threading.Event()
    batch_reads.call_when_ready(pending_graph.on_xla(tensor), ready.set)
    return ready
