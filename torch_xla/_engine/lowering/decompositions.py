"""Operators that PyTorch itself breaks into smaller ones: lowered as a whole by lowering the pieces."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._ops import OpOverload
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ..private import torch as private
from . import fx
from .registry import Promotion, Rule, add_rule, rule_of

_serial = itertools.count()


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of the operators that have no rule."""
    # What we have a rule for stays whole, wherever it appears inside another decomposition.
    table = {**core_aten_decompositions()}
    return {op: decomposition for op, decomposition in table.items() if rule_of(op) is None}


def _decomposition(op: OpOverload) -> Callable[..., Any] | None:
    found = table().get(op) or get_decompositions([op]).get(op)
    return found if callable(found) else None


def exists(op: OpOverload) -> bool:
    """Whether PyTorch can break `op` into smaller operators; whether these can be lowered depends on the call."""
    return _decomposition(op) is not None


def rule_for(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rule | None:
    """A rule for `op` with exactly these sizes and static arguments, or `None` if its pieces cannot be lowered."""
    decomposition = _decomposition(op)
    if decomposition is None:
        return None
    leaves, tree = pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    module = _trace(decomposition, leaves, tree, places)
    if module is None or fx.operators_without_rule(module):
        return None
    draws = fx.draws(module)

    def lower(*args: Any, key: Any = None, **kwargs: Any) -> Any:
        arrays = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, jax.Array)]
        keys = [jax.random.fold_in(key, draw) for draw in range(draws)]
        return fx.interpret(module, arrays[: len(places)], keys)

    return add_rule(Rule((op, next(_serial)), lower, Promotion.NONE, draws > 0))


def _trace(
    decomposition: Callable[..., Any], leaves: list[Any], tree: pytree.TreeSpec, places: list[int]
) -> GraphModule | None:
    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        filled = [torch.device("meta") if isinstance(leaf, torch.device) else leaf for leaf in filled]
        args, kwargs = pytree.tree_unflatten(filled, tree)
        return decomposition(*args, **kwargs)

    with private.without_modes(), torch.no_grad():
        examples = [
            torch.empty_strided(leaves[i].shape, leaves[i].stride(), dtype=leaves[i].dtype, device="meta")
            for i in places
        ]
        try:
            return make_fx(
                functionalize(call, remove="mutations_and_views"), decomposition_table=table(), tracing_mode="fake"
            )(*examples)
        except (NotImplementedError, torch._subclasses.fake_tensor.DynamicOutputShapeException):
            return None
