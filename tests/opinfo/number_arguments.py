"""Compare the bits of results when Python numbers are constants of a program, and when they are its arguments.

A number is a constant of the first program that has it and an argument once it changes, so no result may depend on
which it is. Every operator with a rule that takes a float is called with numbers that rules treat apart, such as 0 and
1. A rule that must know a number's value keeps it a constant in both runs.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import torch_xla
from tests.support import boundaries
from torch_xla._engine.compile import baked_numbers, changing_numbers
from torch_xla._engine.ir.graph import Graph
from torch_xla._engine.lowering.machinery.registry import all_rules
from torch_xla._engine.step.schedule import clear_schedules

from .number_calls import CALLS, NOT_CALLED, NOT_OF_ZERO, by_schema, resized
from .operands import moved

NUMBERS = (0.0, 1.0, 0.3)
EXPONENTS = (2.0, 0.5, -1.0)  # which rules of powers and norms treat apart, too
_KINDS = ("number", "float", "Optional[number]", "Optional[float]", "List[number]", "List[float]")

Call = tuple[Any, list[Any], dict[str, Any]]


def takers() -> dict[str, Any]:
    """Return, by their names, the operators with a rule that takes a float."""
    found = {str(op): op for op in all_rules() if not isinstance(op, str) and _takes(op)}
    return {name: found[name] for name in sorted(found) if not name.startswith(tuple(NOT_CALLED))}


def _takes(op: Any) -> bool:
    return any(str(argument.type) in _KINDS for argument in op._schema.arguments)


def calls_of(name: str, dtype: torch.dtype = torch.float32) -> list[Call]:
    """Return calls of an operator, each with another number."""
    op = takers()[name]
    made = CALLS.get(name) or (resized if "upsample" in name else by_schema)
    numbers = NUMBERS + EXPONENTS * any(part in name for part in ("pow", "norm.Scalar", "dist_"))
    return [(op, *made(op, number, dtype)) for number in numbers if number or name not in NOT_OF_ZERO]


@contextmanager
def numbers_are(arguments: bool) -> Iterator[None]:
    """Make every number an argument of the programs of a `with` block, or a constant."""

    def all_of(graph: Graph, *_: object) -> range:
        return range(len(graph.number_types))

    clear_schedules()
    baked_numbers.bake_all(not arguments)
    try:
        with mock.patch.object(changing_numbers, "known_to_change", all_of) if arguments else nullcontext():
            yield
    finally:
        baked_numbers.bake_all(False)
        clear_schedules()


def differences(calls: list[Call]) -> list[str]:
    """Return, in words, how results of calls with tensors of the CPU differ, and which operators refuse all calls."""
    results = []
    for arguments in (False, True):
        with numbers_are(arguments), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            made = [_called(*call) for call in calls]
            torch_xla.sync(wait=True)
            results.append([each if isinstance(each, str) else [leaf.cpu() for leaf in each] for each in made])
    refused: dict[Any, str] = {}
    found = []
    for (op, args, kwargs), known, given in zip(calls, *results, strict=True):
        if text := _difference(known, given):
            numbers = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, float | int)]
            found.append(f"{op} with {numbers}: {text}")
        refused[op] = known if isinstance(known, str) and refused.get(op, known) else ""
    return found + [f"{op} refuses each call: {text}" for op, text in refused.items() if text]


def _called(op: Any, args: list[Any], kwargs: dict[str, Any]) -> list[Tensor] | str:
    try:
        torch.manual_seed(3)
        args, kwargs = moved((args, kwargs), "xla")
        return [leaf for leaf in pytree.tree_leaves(op(*args, **kwargs)) if isinstance(leaf, Tensor)]
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"


def _difference(known: list[Tensor] | str, given: list[Tensor] | str) -> str:
    if isinstance(known, str) or isinstance(given, str):
        return "" if known == given else f"{known}; as arguments: {given}"
    for index, (one, other) in enumerate(zip(known, given, strict=True)):
        differ = boundaries.differences(one, other)
        if differ.any():
            place = tuple(differ.nonzero()[0].tolist())
            return f"result {index}, at {list(place)}: {one[place]}; as arguments: {other[place]}"
    return ""
