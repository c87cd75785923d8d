"""Find the calls of a graph that write to an element twice, or read it through another tensor while they write to it.

AOTAutograd turns a write through a view into a new base, and adds up what was written to the same element:
`x.expand(2, 3).zero_()` of ones gives -1. It does not see that `x[1:].add_(x[:-1])` reads what it writes. Outside of
graphs such writes are refused, or right.
"""

import inspect
import operator
from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from ...compat.names.torch import address_of, has_storage, pytree
from ...ir.view import Geometry, InternalOverlap, Overlap, has_internal_overlap, overlap_between

# `x += 1`, `x[0] = 1`
_IN_PLACE = {
    getattr(operator, f"i{name}")
    for name in ("add", "and", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift", "sub", "truediv",
                 "xor")
} | {operator.setitem}  # fmt: skip
_METHODS = {f"__{each.__name__.strip('_')}__" for each in _IN_PLACE}


def overlapping_writes(module: GraphModule) -> bool:
    """Return whether a graph of PyTorch's functions, or one inside it, has such a call."""
    graphs = [each.graph for each in module.modules() if isinstance(each, GraphModule)]
    return any(_overlaps(node) for graph in graphs for node in graph.nodes)


def _overlaps(node: Node) -> bool:
    written = list(_written(node))
    values = [each.meta.get("example_value") for each in written]
    if any(map(repeats, values)):
        return True
    others = [each.meta.get("example_value") for each in node.all_input_nodes if each not in written]
    return any(_is_partial(value, other) for value in values for other in others)


def _is_partial(value: object, other: object) -> bool:
    """Return whether two tensors share some elements of one memory, or all at other indices."""
    if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if value.layout is not torch.strided or other.layout is not torch.strided or value.dtype is not other.dtype:
        return False
    if not (has_storage(value) and has_storage(other)):
        return False
    if address_of(value.untyped_storage()) != address_of(other.untyped_storage()):
        return False
    numbers = [(*each.shape, *each.stride(), each.storage_offset()) for each in (value, other)]
    if not all(isinstance(number, int) for each in numbers for number in each):
        return False
    one, another = (Geometry(tuple(each.shape), each.stride(), int(each.storage_offset())) for each in (value, other))
    return overlap_between(one, another) is Overlap.PARTIAL


def repeats(value: object) -> bool:
    """Return whether a tensor shows an element twice for certain."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    # A size that is not known yet is greater than 1.
    size = tuple(n if isinstance(n, int) else 2 for n in value.shape)
    stride = tuple(n if isinstance(n, int) else 1 for n in value.stride())
    return has_internal_overlap(Geometry(size, stride, 0)) is InternalOverlap.YES


def _written(node: Node) -> Iterator[Node]:
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
