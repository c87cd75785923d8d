"""Functions of the user that become the bodies of loops: traced as pure functions of all the tensors they use."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from ..lowering import decompositions
from ..private.dynamo import aot_export_joint_simple, described
from ..private.torch import pytree
from .backend import compile_whole
from .nesting import by_itself

_ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)


def pure_graph(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> GraphModule:
    """The graph of functional operators that `function`, of tensors and of tuples of them, calls for such tensors."""
    with by_itself():
        graph: Any = aot_export_joint_simple(
            function, tuple(described(tensors)), trace_joint=False, decompositions=decompositions.table()
        )
    leave_out_assertions(graph)
    return graph  # type: ignore[no-any-return]


def leave_out_assertions(graph: GraphModule) -> None:
    """Takes what only looks at values and may raise out of a graph and those inside: no round can stop a loop."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in _ASSERTIONS:
            graph.graph.erase_node(node)
    for inside in graph.children():
        if isinstance(inside, GraphModule):
            leave_out_assertions(inside)


def traced_call(function: Callable[..., Any], leaves: Sequence[Any], tree: pytree.TreeSpec) -> Callable[..., Any]:
    """`function` of these arguments as one recorded operation of the tensors among them, without gradients.

    Raises `Unsplittable` if it cannot be one.
    """
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    static = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    nested: list[pytree.TreeSpec] = []

    def of_tensors(*tensors: torch.Tensor) -> Any:
        filled = list(static)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = pytree.tree_unflatten(filled, tree)
        results, spec = pytree.tree_flatten(function(*args, **kwargs))
        nested[:] = [spec]
        return tuple(results)

    compiled = compile_whole(pure_graph(of_tensors, [leaves[place] for place in places]), kind="forward")

    def call(tensors: Sequence[torch.Tensor]) -> Any:
        with torch.no_grad():
            return pytree.tree_unflatten(compiled(list(tensors)), nested[0])

    return call
