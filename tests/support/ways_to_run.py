"""The ways in which a function runs on `xla`: recorded, in eager mode, replayed, and compiled by `torch.compile`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import torch_xla

WAYS = ("recorded", "eager", "replay", "openxla")


@contextmanager
def made_to_run(way: str, function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """A block in which the function given to it runs in this way."""
    if way == "eager":
        torch_xla.experimental.eager_mode(True)
    try:
        if way == "replay":
            yield torch_xla.compile(function, replay=True)
        elif way == "openxla":
            torch.compiler.reset()
            yield torch.compile(function, backend="openxla")
        else:
            yield function
    finally:
        if way == "eager":
            torch_xla.experimental.eager_mode(False)
