"""Trace a user's function as a pure loop body of all the tensors it uses."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from ...compat.names.torch import pytree
from ...compat.names.torch_dynamo import TorchDispatchMode, aot_export_joint_simple, described
from ...lowering.fx_graphs import decompositions
from ..dynamo.backend import compile_whole
from ..dynamo.host_device_split import Unsplittable
from .nested_loops import by_itself

aten = torch.ops.aten

_CHECKS = (aten._assert_async.default, aten._assert_async.msg, aten._linalg_check_errors.default)


class _WithoutChecks(TorchDispatchMode):
    """Leaves out what only looks at values and may raise: no round can stop a loop."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        return None if func in _CHECKS else func(*args, **(kwargs or {}))


def without_checks(function: Callable[..., object]) -> Callable[..., object]:
    """Return `function` without its assertions while it is traced."""

    def run(*args: object) -> object:
        with _WithoutChecks():
            return function(*args)

    return run


def pure_graph(function: Callable[..., object], tensors: Sequence[torch.Tensor]) -> GraphModule:
    """Return the graph of functional operators that `function`, of tensors and of tuples of them, calls for such
    tensors.
    """
    with by_itself():
        return graph_for(function, described(tensors), decompositions.table())


def graph_for(
    function: Callable[..., object], described: Sequence[object], table: dict[Any, Callable[..., Any]]
) -> GraphModule:
    """Return the same for tensors that were described already, whose sizes may be symbols, with these
    decompositions.
    """
    with by_itself():
        graph: Any = aot_export_joint_simple(
            without_checks(function), tuple(described), trace_joint=False, decompositions=table
        )
    return graph  # type: ignore[no-any-return]


def traced_call(function: Callable[..., object], leaves: Sequence[Any], tree: pytree.TreeSpec) -> Callable[..., object]:
    """Return `function` of these arguments as one recorded operation of the tensors among them, without gradients.

    Raises `Unsplittable` if it cannot be one.
    """
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    static = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    nested: list[pytree.TreeSpec] = []

    def of_tensors(*tensors: torch.Tensor) -> object:
        filled = list(static)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = pytree.tree_unflatten(filled, tree)
        results, spec = pytree.tree_flatten(function(*args, **kwargs))
        nested[:] = [spec]
        return tuple(results)

    try:
        graph = pure_graph(of_tensors, [leaves[place] for place in places])
    except RuntimeError as error:
        if "does not support input mutations" in str(error):
            raise Unsplittable("a function writes to a tensor that it is given or closes over") from error
        raise
    compiled = compile_whole(graph, kind="forward")

    def call(tensors: Sequence[torch.Tensor]) -> object:
        with torch.no_grad():
            return pytree.tree_unflatten(compiled(list(tensors)), nested[0])

    return call
