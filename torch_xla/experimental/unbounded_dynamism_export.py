"""Symbolic sizes of exported programs. `torch_xla.stablehlo` lowers them without changes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .._engine.compat import removed_names

__getattr__ = removed_names.asked_of(__name__)


class _OfFunction(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function's own result."""
        return self._function(*args, **kwargs)


def wrap_func_as_nn_module(f: Callable[..., Any]) -> nn.Module:
    """Return a module whose `forward` is `f`, for `torch.export`.

    >>> import torch
    >>> from torch_xla.experimental.unbounded_dynamism_export import wrap_func_as_nn_module
    >>> wrap_func_as_nn_module(torch.neg)(torch.ones(1))
    tensor([-1.])
    """
    return _OfFunction(f)


def exported_program_has_symbolic_input_shape(ep: torch.export.ExportedProgram) -> bool:
    """Return whether a size of an input is a symbol, that is, the program was exported with `torch.export.Dim`."""
    inputs = (node.meta.get("val") for node in ep.graph.nodes if node.op == "placeholder")
    return any(isinstance(n, torch.SymInt) for each in inputs if isinstance(each, torch.Tensor) for n in each.shape)


def process_exported_program_with_symbolic_input(ep: torch.export.ExportedProgram) -> None:
    """Do nothing: every operator is lowered with symbolic sizes."""
