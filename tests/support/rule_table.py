"""Compares many calls of lowering rules with PyTorch at once: compiled as one program, which saves most time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree

from tests.support.rules import DROPPED, to_jax, to_torch
from torch_xla._engine import dtypes
from torch_xla._engine.lowering import promotion as promote
from torch_xla._engine.lowering.registry import Promotion, rule_of


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an aten operator on CPU tensors."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        def short(leaf: Any) -> Any:
            return f"{leaf.dtype}{list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else leaf

        return f"{self.op}{pytree.tree_map(short, self.args)} {pytree.tree_map(short, self.kwargs)}"


def call(op: Any, *args: Any, **kwargs: Any) -> Call:
    return Call(op, args, kwargs)


def _prepared(made: Call) -> tuple[list[jax.Array], Callable[[list[jax.Array]], Any]]:
    """The arrays a call needs, promoted, and the rule as a function of them."""
    rule = rule_of(made.op)
    assert rule is not None, f"{made.op} has no rule"
    kwargs = {name: value for name, value in made.kwargs.items() if name not in DROPPED}
    leaves, tree = pytree.tree_flatten((list(made.args), kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    arrays = [to_jax(leaves[place]) for place in places]
    if rule.promotion is not Promotion.NONE:
        numbers = [leaf for leaf in leaves if isinstance(leaf, (bool, int, float, complex))]
        dtype = promote.common_dtype([(leaves[place].dtype, leaves[place].dim()) for place in places], numbers)
        if rule.promotion is Promotion.FLOAT:
            dtype = promote.float_dtype(dtype)
        arrays = [array.astype(dtypes.to_jax(dtype)) for array in arrays]

    def lower(arrays: list[jax.Array]) -> Any:
        filled = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        args, named = pytree.tree_unflatten(filled, tree)
        return rule.lower(*args, **named)

    return arrays, lower


def check_calls(calls: Iterable[Call], rtol: float | None = None, atol: float | None = None) -> None:
    """Asserts that every call gives by our rule what PyTorch gives: shape, values, and dtype up to the final cast."""
    made = list(calls)
    with jax.enable_x64(True):
        prepared = [_prepared(each) for each in made]
        functions = [lower for _, lower in prepared]

        def run(arrays: list[list[jax.Array]]) -> list[Any]:
            return [lower(given) for lower, given in zip(functions, arrays, strict=True)]

        results = jax.jit(run)([arrays for arrays, _ in prepared])
    for each, result in zip(made, results, strict=True):
        ours = [to_torch(array) for array in jax.tree.leaves(result)]
        theirs = pytree.tree_leaves(each.op(*each.args, **each.kwargs))
        assert len(ours) == len(theirs), f"{each}: {len(ours)} results, expected {len(theirs)}"
        for got, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(
                got.to(expected.dtype),
                expected.contiguous(),
                rtol=rtol,
                atol=atol,
                equal_nan=True,
                msg=lambda text, each=each: f"{each}\n{text}",
            )
