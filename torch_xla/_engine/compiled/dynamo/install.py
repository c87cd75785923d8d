"""Prepare Dynamo at the first call of `torch.compile`, because importing it takes seconds."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from ...compat import patch_list
from ...compat.names import torch as private
from ...lowering.fx_graphs import interpreter

# PyTorch registers the first two itself; its versions look for a bridge and know neither donation nor one graph a step.
# Frameworks use the others, older names.
NAMES = ("openxla", "openxla_eval", "torchxla_trace_once", "aot_torchxla_trace_once")


def install() -> None:
    """Wrap `torch.compile` so that its first call prepares Dynamo; take over loops and branches."""
    patch_list.compile.wrap(_registering)
    for operator in interpreter.higher_order:
        private.kernel_of_higher_order(operator, functools.partial(_run_higher_order, operator))


def _run_higher_order(operator: object, *args: object, **kwargs: object) -> Any:
    """Return a loop or branch of PyTorch on our tensors. Tracing its body takes what `torch.compile` is made of."""
    return importlib.import_module("..loops.higher_order_ops", __package__).run(operator, args, kwargs)


def _registering(original: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile(*args: object, **kwargs: object) -> Any:
        _prepare()
        return original(*args, **kwargs)

    return compile


@functools.cache
def _prepare() -> None:
    importlib.import_module(f"{__package__}.registration").register(NAMES)
    importlib.import_module(f"{__package__}.default_backend").install()
