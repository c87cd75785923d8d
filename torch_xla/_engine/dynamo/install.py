"""Prepares Dynamo for us at the first call of `torch.compile`: importing it takes seconds."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

# PyTorch registers the first two itself; its versions look for a bridge and know neither donation nor one graph a step.
# Frameworks use the others, older names.
NAMES = ("openxla", "openxla_eval", "torchxla_trace_once", "aot_torchxla_trace_once")


def install() -> None:
    """Replaces `torch.compile` by itself, with a first call that prepares Dynamo."""
    torch.compile = _registering(torch.compile)


def _registering(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        _prepare()
        return original(*args, **kwargs)

    return compile


@functools.cache
def _prepare() -> None:
    importlib.import_module(f"{__package__}.backend").register(NAMES)
