"""Errors for operators that cannot be exported with sizes that may change."""

from collections.abc import Iterable
from traceback import walk_tb
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..compat.names.torch import OpOverload, pytree, schema_of
from ..lowering.fx_graphs import interpreter


def refuse(error: Exception, module: GraphModule) -> None:
    """Raise an error that names the failed operator, if its sizes may change and no error of ours has named it."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    here = __name__.partition(".")[0]
    if isinstance(error, NotImplementedError) and frames[-1].f_globals["__name__"].partition(".")[0] == here:
        return
    node = _failed(frames, module)
    given = [each.meta["val"] for each in node.all_input_nodes if "val" in each.meta] if node is not None else []
    if node is None or not any(map(may_change, given)):
        return
    line = interpreter.line_of(node)
    name = node.target if isinstance(node.target, OpOverload) else getattr(node.target, "__name__", node.name)
    said = str(error).partition("\n")[0].rstrip(".")
    where = f" ({line[0]}:{line[1]} in {line[2]})" if line is not None else ""
    raise NotImplementedError(
        f"{name}{where} has no form for sizes that may change here. It was given "
        f"{', '.join(map(_shown, given))}, and failed with {type(error).__name__}: {said}. "
        f"Export the model with these sizes fixed, once for each size, or use another operator there."
    ) from error


def _failed(frames: Iterable[Any], module: GraphModule) -> Node | None:
    """Return the node of the graph, or of one inside it, that was being lowered."""
    nodes = [frame.f_locals.get("node") for frame in frames if frame.f_code is interpreter.interpret.__code__]
    if nodes:
        return nodes[-1]
    # For an error in JAX's later stage, which writes StableHLO, find the operator by the name in the equation's stack.
    stacks = [frame.f_locals["eqn"].source_info.name_stack for frame in frames if "eqn" in frame.f_locals]
    names = [name for stack in stacks for name in str(stack).split("/")]
    calls = [node for node in module.graph.nodes if isinstance(node.target, OpOverload)]
    return next((node for node in calls if schema_of(node.target).name in names), None)


def may_change(value: object) -> bool:
    """Return whether a value of a graph is a number that is known only at run time, or a tensor with such a size."""
    leaves = pytree.tree_leaves(value)
    numbers = [n for leaf in leaves for n in (leaf.shape if isinstance(leaf, torch.Tensor) else [leaf])]
    return any(isinstance(n, (torch.SymInt, torch.SymFloat, torch.SymBool)) for n in numbers)


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of the size ({', '.join(map(str, value.shape))})"
    return "tensors" if isinstance(value, (list, tuple)) else f"the number {value}"
