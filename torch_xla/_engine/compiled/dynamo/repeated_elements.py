"""Find the calls of a graph that write to a tensor which shows an element twice, as an expanded one does.

AOTAutograd turns a write through a view into a new base, and adds up what was written to the same element:
`x.expand(2, 3).zero_()` of ones gives -1. Outside of graphs such a write is refused, or right.
"""

import inspect
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...compat.names.torch import pytree
from ...ir.view import Geometry, InternalOverlap, has_internal_overlap

# `x += 1`, `x[0] = 1`
_IN_PLACE = {
    getattr(operator, f"i{name}")
    for name in ("add", "and", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift", "sub", "truediv",
                 "xor")
} | {operator.setitem}  # fmt: skip
_METHODS = {f"__{each.__name__.strip('_')}__" for each in _IN_PLACE}


def writes_to_repeated_elements(module: GraphModule) -> bool:
    """Return whether a graph of PyTorch's functions, or one inside it, writes to a tensor that repeats elements."""
    graphs = [each.graph for each in module.modules() if isinstance(each, GraphModule)]
    return any(repeats(node.meta.get("example_value")) for graph in graphs for node in _written(graph.nodes))


def repeats(value: object) -> bool:
    """Return whether a tensor shows an element twice for certain."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    # A size that is not known yet is greater than 1.
    size = tuple(n if isinstance(n, int) else 2 for n in value.shape)
    stride = tuple(n if isinstance(n, int) else 1 for n in value.stride())
    return has_internal_overlap(Geometry(size, stride, 0)) is InternalOverlap.YES


def _written(nodes: Any) -> Iterator[Node]:
    for node in nodes:
        if node.op in ("call_function", "call_method"):
            for leaf in pytree.tree_leaves([_target(node), node.kwargs.get("out")]):
                if isinstance(leaf, Node):
                    yield leaf


def _target(node: Node) -> object:
    """Return what a call writes to: its first argument, or nothing."""
    if not node.args or not _is_in_place(node):
        return None
    return node.args[0]


def _is_in_place(node: Node) -> bool:
    if node.target in (_METHODS if node.op == "call_method" else _IN_PLACE):
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "").partition(".")[0]
    if name.endswith("_") and not name.endswith("__"):
        return True
    return _asks_for_it(node)


def _asks_for_it(node: Node) -> bool:
    """Return whether a call has `inplace=True`."""
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    if not any(each is True for each in node.args) or not inspect.isfunction(node.target):
        return False
    names = list(inspect.signature(node.target).parameters)[: len(node.args)]
    return "inplace" in names and node.args[names.index("inplace")] is True
