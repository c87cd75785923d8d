"""Compares many calls of lowering rules with PyTorch at once: compiled as one program, which saves most time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree

from tests.support.rules import DROPPED, of_the_cpu, to_jax, to_torch
from torch_xla._engine import compiler_options, dtypes
from torch_xla._engine.lowering.machinery import promotion as promote
from torch_xla._engine.lowering.machinery.registry import Promotion, rule_of


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


def _changing_numbers(made: Call) -> set[int | str]:
    """The arguments, by place or name, that are numbers the device may get anew at every step."""
    arguments = made.op._schema.arguments
    names = {argument.name for argument in arguments if str(argument.type) in ("number", "float", "Optional[number]")}
    placed: list[tuple[int | str, str, Any]] = [(i, arguments[i].name, value) for i, value in enumerate(made.args)]
    placed += [(name, name, value) for name, value in made.kwargs.items()]
    return {place for place, name, value in placed if name in names and isinstance(value, (int, float))}


def _prepared(made: Call, changing: bool) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The inputs that a call needs, arrays promoted, and the rule as a function of them."""
    rule = rule_of(made.op)
    assert rule is not None, f"{made.op} has no rule"
    kwargs = {name: value for name, value in made.kwargs.items() if name not in DROPPED}
    leaves, tree = pytree.tree_flatten((list(made.args), kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    inputs: list[Any] = [to_jax(leaves[place]) for place in places]
    if rule.promotion is not Promotion.NONE:
        numbers = [leaf for leaf in leaves if isinstance(leaf, (bool, int, float, complex))]
        dtype = promote.common_dtype([(leaves[place].dtype, leaves[place].dim()) for place in places], numbers)
        if rule.promotion is Promotion.FLOAT:
            dtype = promote.float_dtype(dtype)
        inputs = [array.astype(dtypes.to_jax(dtype)) for array in inputs]
    arguments = sorted(_changing_numbers(made), key=str) if changing else []
    inputs += [made.args[argument] if isinstance(argument, int) else kwargs[argument] for argument in arguments]

    def lower(inputs: list[Any]) -> Any:
        filled, arrays = list(leaves), inputs[: len(places)]
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        args, named = pytree.tree_unflatten(filled, tree)
        for argument, number in zip(arguments, inputs[len(places) :], strict=True):
            (args if isinstance(argument, int) else named)[argument] = number
        return rule.lower(*args, **named)

    return inputs, lower


def check_calls(
    calls: Iterable[Call], rtol: float | None = None, atol: float | None = None, changing: bool = False
) -> None:
    """Asserts that every call gives by our rule what PyTorch gives: shape, values, and dtype up to the final cast.

    With `changing`, numbers among the arguments are inputs of the program, as they are once they have changed.
    """
    made = list(calls)
    with jax.enable_x64(True):
        prepared = [_prepared(each, changing) for each in made]
        functions = [lower for _, lower in prepared]

        def run(inputs: list[list[Any]]) -> list[Any]:
            return [lower(given) for lower, given in zip(functions, inputs, strict=True)]

        options = dict(compiler_options.chosen())
        results = jax.jit(run, compiler_options=options)([inputs for inputs, _ in prepared])
    for each, result in zip(made, results, strict=True):
        arrays = jax.tree.leaves(result)
        assert not any(array.weak_type for array in arrays), f"{each}: the result is weakly typed"
        ours = [to_torch(array) for array in arrays]
        theirs = pytree.tree_leaves(of_the_cpu(each.op, each.args, each.kwargs))
        assert len(ours) == len(theirs), f"{each}: {len(ours)} results, expected {len(theirs)}"
        for got, expected in zip(ours, theirs, strict=True):
            got, expected = got.to(expected.dtype), expected.contiguous()
            try:
                torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)
            except AssertionError as error:
                raise AssertionError(f"{each}\n{error}") from None
