"""Pair inputs with the outputs that take their memory, so that XLA updates parameters in place.

This follows from a graph alone. Whether an input may be given away is another question (`step/liveness.py`).
"""

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from .call_plan import Operand, Plan
from .graph import Graph


def successors(graph: Graph) -> dict[int, int]:
    """Return inputs with the output that most likely takes the place of each: both by their index.

    Operators that write to an argument compute its new value from it, and it is their first argument, or one of their
    first if they write to several: so the way back from an output along first operands of the same form leads to the
    input that it replaces.
    """
    made_by = {}
    for operation in graph.operations:
        for index in range(len(operation.plan.outputs)):
            made_by[operation.first_output + index] = (operation, index)
    found: dict[int, int] = {}
    for output, slot in enumerate(graph.outputs):
        while slot in made_by:
            operation, index = made_by[slot]
            operand = replaced_operands(operation.plan)[index]
            if operand < 0:
                break
            slot = operation.operands[operand]
        if slot < len(graph.inputs):
            found.setdefault(slot, output)
    return found


_known: WeakKeyDictionary[Plan, tuple[int, ...]] = WeakKeyDictionary()


def replaced_operands(plan: Plan) -> tuple[int, ...]:
    """Return for each output of a plan the operand that it replaces if the call was one in place; -1: none."""
    known = _known.get(plan)
    if known is None:
        known = _known[plan] = plan.replaces if plan.replaces is not None else _by_position(plan)
    return known


def _by_position(plan: Plan) -> tuple[int, ...]:
    arguments = plan.arguments[0]
    operands: list[int] = []
    for position, count in enumerate(plan.structure):
        if count == -2:
            continue
        argument = arguments[position] if position < len(arguments) else None
        parts = argument if count >= 0 and isinstance(argument, (list, tuple)) else [argument]
        whole = len(parts) == max(count, 1)
        operands += [each.index if whole and isinstance(each, Operand) else -1 for each in parts][: abs(count)]
        operands += [-1] * (abs(count) - len(parts))
    return tuple(
        operand if operand >= 0 and _alike(plan.operands[operand], spec) else -1
        for operand, spec in zip(operands, plan.outputs, strict=True)
    )


def _alike(one: Any, other: Any) -> bool:
    return bool(one.size == other.size and one.dtype is other.dtype)


def takers(graph: Graph, candidates: Iterable[int], first: Container[int]) -> tuple[int, ...]:
    """Return those of the inputs at `candidates` whose memory an output of the same form can take; `first` come
    first.
    """
    specs = graph.specs
    room = Counter((specs[slot].size, specs[slot].dtype) for slot in graph.outputs)
    found: list[int] = []
    for index in sorted(candidates, key=lambda each: each not in first):
        form = specs[index].size, specs[index].dtype
        if room[form]:
            room[form] -= 1
            found.append(index)
    return tuple(sorted(found))


def given_to_successors(graph: Graph, ending: Sequence[bool], successor: dict[int, int]) -> tuple[int, ...]:
    """Return those of the inputs that are `ending` whose memory their `successor` can take, one for each output."""
    heirs: dict[int, int] = {}
    for index, ends in enumerate(ending):
        output = successor.get(index)
        if ends and output is not None and _alike(graph.inputs[index], graph.specs[graph.outputs[output]]):
            heirs.setdefault(output, index)
    return tuple(sorted(heirs.values()))


def in_order(graph: Graph, donated: Sequence[int], successor: dict[int, int]) -> list[int]:
    """Return the outputs (by index) in such an order that each donated input finds its successor.

    JAX gives the memory of the first donated input of a form to the first output of that form, and so on.
    """
    specs = graph.specs
    forms: dict[Hashable, list[int]] = defaultdict(list)
    for output, slot in enumerate(graph.outputs):
        forms[specs[slot].size, specs[slot].dtype].append(output)
    heirs: dict[Any, list[int | None]] = defaultdict(list)
    for index in donated:
        form = graph.inputs[index].size, graph.inputs[index].dtype
        heirs[form].append(successor.get(index))
    order = list(range(len(graph.outputs)))
    for form, wanted in heirs.items():
        places = forms[form]
        free = iter([output for output in places if output not in set(wanted)])
        chosen = [output if output is not None else next(free) for output in wanted]
        for place, output in zip(places, [*chosen, *free], strict=True):
            order[place] = output
    return order
