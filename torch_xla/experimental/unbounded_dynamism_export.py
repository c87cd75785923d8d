"""Symbolic sizes of exported programs. `torch_xla.stablehlo` lowers them without changes."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

_aten = torch.ops.aten


class _OfFunction(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: object, **kwargs: object) -> object:
        """Return the function's own result."""
        return self._function(*args, **kwargs)


def wrap_func_as_nn_module(f: Callable[..., object]) -> nn.Module:
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


def call_function(
    graph: torch.fx.Graph,
    target: Callable[..., Any],
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> torch.fx.Node:
    """Add a call to a graph, with the value that the call has for the values of its arguments (`node.meta["val"]`)."""
    node = graph.call_function(target, args or (), kwargs or {})
    given = torch.fx.map_arg((args or (), kwargs or {}), lambda each: each.meta.get("val"))
    node.meta["val"] = target(*given[0], **given[1])
    return node


def native_layer_norm_impl(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """Return the result of a layer norm, composed of simple operators."""
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    centred = input - input.mean(dims, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + eps) * weight + bias


def native_group_norm_impl(
    input: Tensor, weight: Tensor, bias: Tensor, N: int, C: int, HxW: int, group: int, eps: float
) -> Tensor:
    """Return the result of a group norm, composed of simple operators."""
    grouped = input.reshape(N, group, -1)
    centred = grouped - grouped.mean(2, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(2, keepdim=True) + eps)
    size = [1, C] + [1] * (input.dim() - 2)
    return normal.reshape(input.shape) * weight.reshape(size) + bias.reshape(size)


def native_layer_norm_pattern(x: Tensor, dim: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the result of the operator that `native_layer_norm_impl` composes."""
    result: Tensor = _aten.native_layer_norm(x, [dim], weight, bias, eps)[0]
    return result


def native_group_norm_pattern(
    x: Tensor, weight: Tensor, bias: Tensor, N: int, C: int, HxW: int, group: int, eps: float
) -> Tensor:
    """Return the result of the operator that `native_group_norm_impl` composes."""
    result: Tensor = _aten.native_group_norm(x, weight, bias, N, C, HxW, group, eps)[0]
    return result


def remove_no_op_slice(gm: GraphModule) -> GraphModule:
    """Remove slices that take all of a dimension, in place; return the graph."""
    for node in list(gm.graph.nodes):
        if node.target is _aten.slice.Tensor and _takes_all(*node.args, **node.kwargs):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _takes_all(_: object, dim: int = 0, start: object = None, end: object = None, step: object = 1) -> bool:
    return not start and end in (None, sys.maxsize) and start in (None, 0) and step == 1


def _unchanged(gm: GraphModule) -> GraphModule:
    """Return the graph as it is: each of its operators is lowered with symbolic sizes."""
    return gm


# Rewrites of PyTorch/XLA 2 for operators that it could not lower with symbolic sizes.
decompose_dynamic_native_layer_norm = _unchanged
decompose_dynamic_native_group_norm = _unchanged
decompose_dynamic_shape_select = _unchanged
decompose_split_with_sizes = _unchanged
flatten_embedding_indices_tensor = _unchanged
replace_dynamic_expand_with_xla_op = _unchanged
replace_dynamic_view_with_xla_op = _unchanged
dynamic_unsqueeze_to_view = _unchanged
