"""Loops and branches inside loop bodies: pass what their functions close over as operands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from ...compat.names import torch as private
from ...compat.names.torch import pytree
from . import nested_loops
from .closure_captures import Tracing, with_captured
from .loop_bodies import pure_graph


@dataclass(frozen=True)
class _Form:
    """The positions of an operator's functions among its arguments, and the operands that they receive."""

    functions: tuple[int, ...]
    whole: tuple[int, ...]  # passed on as they are
    sliced: tuple[int, ...]  # the functions receive slices of these operands
    last: int  # further operands can be added to this argument


_FORMS = {
    private.cond: _Form((1, 2), (3,), (), 3),
    private.while_loop: _Form((0, 1), (2, 3), (), 3),
    private.scan: _Form((0,), (1, 3), (2,), 3),
    private.map_loop: _Form((0,), (2,), (1,), 2),
}


def _lifted(operator: Any, call: Callable[..., Any], args: Sequence[Any]) -> torch.Tensor:
    """Return the result of `call(*args)`, whose functions are graphs that close over nothing."""
    form = _FORMS[operator]
    functions = [args[place] for place in form.functions]
    if all(isinstance(each, GraphModule) for each in functions):
        return call(*args)
    stage = Tracing()
    described = [
        pytree.tree_map_only(
            torch.Tensor, stage.describe_slice if place in form.sliced else stage.describe, args[place]
        )
        for place in sorted((*form.whole, *form.sliced))
    ]
    leaves, tree = pytree.tree_flatten(tuple(described))
    nested = [pytree.tree_structure(stage.run(each, *_given(tree, leaves))) for each in functions]
    captured = stage.captured
    if stage.written:
        raise RuntimeError(f"a function of {operator} writes to a tensor that it closes over; return what it becomes")
    if any(stage.is_written(each) for each in leaves if isinstance(each, torch.Tensor)):
        raise RuntimeError(f"a function of {operator} writes to an operand; return what it becomes, or clone it first")

    def of_leaves(function: Callable[..., object]) -> Callable[..., Any]:
        def run(*tensors: torch.Tensor) -> object:
            own = [tensor.clone() for tensor in tensors[: len(leaves)]]
            results = with_captured(function, captured, tensors[len(leaves) :])(*_given(tree, own))
            return tuple(each.clone() for each in pytree.tree_leaves(results))

        return run

    examples = [*leaves, *map(stage.describe, captured)]
    filled = [tuple(pytree.tree_leaves(each)) if isinstance(each, (tuple, list, dict)) else each for each in args]
    for place, function in zip(form.functions, functions, strict=True):
        filled[place] = pure_graph(of_leaves(function), examples)
    filled[form.last] = (*filled[form.last], *captured)
    results = call(*filled)
    return pytree.tree_unflatten(list(results), nested[-1])


def _given(tree: pytree.TreeSpec, leaves: Sequence[object]) -> tuple[torch.Tensor, ...]:
    """Return the arguments of a function, one after the other."""
    return tuple(each for group in pytree.tree_unflatten(list(leaves), tree) for each in group)


for _operator in _FORMS:
    nested_loops.lifted[_operator] = _lifted
