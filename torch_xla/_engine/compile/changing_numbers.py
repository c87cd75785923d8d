"""Predict which Python numbers of a new graph change from step to step, so that they are arguments from the start."""

from collections import Counter
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ..compat.names.torch import OpOverload, overload_name_of
from ..ir.call_plan import Plan
from ..ir.graph import Graph
from ..lowering.machinery import capacity_ops
from ..lowering.views.storage_access import PLACES
from ..metrics.user_lines import Line, OptimizersLine
from . import baked_numbers
from .symbolic_length import GROWING

# The numbers each plan came with, by its place among the same plans of a graph (for a place in a storage, also by how
# many they are). A plan that comes with other numbers in a new graph (the second step of an optimizer, whose state
# exists by now) will come with others again.
_seen_numbers: WeakKeyDictionary[Plan, dict[tuple[int, int], tuple[float | int, ...]]] = WeakKeyDictionary()

# Operations whose numbers differ from step to step by what they are for.
_COUNTING = capacity_ops.COUNTING | {GROWING}


def known_to_change(graph: Graph, numbers: Sequence[float | int], lines: Sequence[Line | None]) -> list[int]:
    """Return the indices of numbers that will differ in the next run: by their operation, or as they have differed."""
    if baked_numbers.are_asked():
        return []
    changed: list[int] = []
    places: Counter[Plan] = Counter()
    # Cuts are numbered per plan, so another cut does not renumber these.
    cuts = Counter(operation.plan for operation in graph.operations if operation.plan.op in PLACES)
    for index, operation in enumerate(graph.operations):
        plan, first = operation.plan, operation.first_number
        if not plan.numbers:
            continue
        own = tuple(numbers[first : first + len(plan.numbers)])
        is_an_optimizers = bool(lines) and isinstance(lines[index], OptimizersLine) and plan.op not in PLACES
        if plan.op in _COUNTING or _counts_for_each(plan) or is_an_optimizers:
            changed.extend(range(first, first + len(plan.numbers)))
            continue
        before = _seen_numbers.setdefault(plan, {}).setdefault((cuts[plan], places[plan]), own)
        changed.extend(first + i for i, (old, new) in enumerate(zip(before, own, strict=True)) if old != new)
        places[plan] += 1
    return changed


def _counts_for_each(plan: Plan) -> bool:
    """Return whether a number comes for each tensor of a list: optimizers compute these for every step."""
    return isinstance(plan.op, OpOverload) and overload_name_of(plan.op) == "ScalarList"
