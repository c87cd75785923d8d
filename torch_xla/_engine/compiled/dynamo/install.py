"""Prepare Dynamo at the first call of `torch.compile`, because importing it takes seconds."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from ...compat import patch_list
from ...compat.names import torch as private
from ...lowering.fx_graphs import interpreter

# PyTorch registers the first two itself; its versions look for a bridge and know neither donation nor one graph a step.
# Frameworks use the others, older names.
NAMES = ("openxla", "openxla_eval", "torchxla_trace_once", "aot_torchxla_trace_once")


def install() -> None:
    """Wrap `torch.compile` so that its first call prepares Dynamo; take over loops and branches."""
    patch_list.compile.wrap(_registering)
    patch_list.precompiled.wrap(_keeping_graphs)
    for operator in interpreter.higher_order:
        private.kernel_of_higher_order(operator, functools.partial(_run_higher_order, operator))


def _run_higher_order(operator: object, *args: object, **kwargs: object) -> object:
    """Return a loop or branch of PyTorch on our tensors. Tracing its body takes what `torch.compile` is made of."""
    return importlib.import_module("..loops.higher_order_ops", __package__).run(operator, args, kwargs)


def _registering(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def compile(*args: object, **kwargs: object) -> object:
        _prepare()
        return original(*args, **kwargs)

    return compile


def _keeping_graphs(original: Callable[..., Any]) -> Callable[..., object]:
    # PyTorch's own backend "eager" keeps the graph of a function, and "inductor" makes code for devices of its own.
    @functools.wraps(original)
    def lower(self: Any, args: object) -> Any:
        if any(map(_is_on_xla, private.pytree.tree_leaves(args))):
            private.keep_precompiled_graph(self)
        return original(self, args)

    return lower


def _is_on_xla(argument: object) -> bool:
    parts = argument.state_dict().values() if isinstance(argument, torch.nn.Module) else (argument,)
    return any(isinstance(part, torch.Tensor) and part.device.type == "xla" for part in parts)


@functools.cache
def _prepare() -> None:
    importlib.import_module(f"{__package__}.registration").register(NAMES)
    importlib.import_module(f"{__package__}.default_backend").install()
