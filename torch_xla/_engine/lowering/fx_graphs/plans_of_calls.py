"""Convert an FX graph of functional aten operators to a graph of plans, as if each call had been recorded.

`interpreter.interpret` lowers such a graph as one operation. This module keeps the calls separate, for passes that look
for repeated layers. Both run the same calls by the same rules, with the same random keys in the same order.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ... import dtypes
from ...compat.names.torch import OpOverload
from ...ir.call_plan import Operand, Plan, interned
from ...ir.graph import Graph, Operation
from ...ir.value_spec import Spec, contiguous_stride, spec_of
from ..machinery import promotion
from ..machinery.registry import NEVER_ARRIVE, Promotion, Rule, that_arrive
from . import interpreter


class _Unknown(Exception):
    """A part of the graph that no plan describes, such as a size that is known at run time only."""


def graph_of(module: GraphModule) -> Graph | None:
    """Return the calls of `module` in their order; `None` if some sizes or results are known only when it runs.

    Its inputs are the placeholders, each a tensor; its outputs are the module's.
    """
    calls = _Calls()
    try:
        for node in module.graph.nodes:
            if node.op == "output":
                return calls.graph(node.args[0])
            calls.add(node)
    except _Unknown:
        return None
    raise ValueError("a graph without an output")


class _Calls:
    """The calls so far, and the slots of each node's results."""

    def __init__(self) -> None:
        # a slot, or slots nested as the node's results; `None` for a result that is not read
        self._slots: dict[Node, Any] = {}
        self._inputs: list[Spec] = []
        self._specs: list[Spec] = []
        self._operations: list[Operation] = []
        self._draws = 0

    def graph(self, outputs: Sequence[Node]) -> Graph:
        return Graph(tuple(self._inputs), tuple(self._operations), tuple(self._slots[node] for node in outputs))

    def add(self, node: Node) -> None:
        target = node.target
        if node.op == "placeholder":
            spec = _spec(node.meta.get("val"))
            self._inputs.append(spec)
            self._slots[node] = len(self._specs)
            self._specs.append(spec)
        elif target is operator.getitem:
            self._slots[node] = self._slots[node.args[0]][node.args[1]]  # type: ignore[index]
        elif isinstance(target, OpOverload) and target in interpreter.EMPTY:
            spec = _spec(node.meta.get("val"))
            plan = Plan(torch.ops.aten.zeros.default, ((spec.size,), {"dtype": spec.dtype}), (), (), (spec,))
            self._append(node, plan, [])
        elif isinstance(target, OpOverload) and (rule := interpreter.rule_for(target)) is not None:
            self._append(node, *self._call(node, rule))
        else:
            raise _Unknown

    def _append(self, node: Node, plan: Plan, operands: Sequence[int]) -> None:
        first = len(self._specs)
        draw = self._draws if plan.draws else -1
        self._operations.append(Operation(interned(plan), tuple(operands), 0, draw, first, -1))
        self._draws += plan.draws
        self._specs += plan.outputs
        slots = iter(range(first, len(self._specs)))
        nested = [
            next(slots) if count == -1 else None if count == -2 else [next(slots) for _ in range(count)]
            for count in plan.structure
        ]
        self._slots[node] = nested[0] if len(nested) == 1 else nested

    def _call(self, node: Node, rule: Rule) -> tuple[Plan, list[int]]:
        places: dict[int, int] = {}

        def filled(argument: object) -> Any:
            if isinstance(argument, Node):
                slot = self._slots[argument]
                if not isinstance(slot, int):
                    raise _Unknown
                return Operand(places.setdefault(slot, len(places)))
            if isinstance(argument, list | tuple):
                return tuple(map(filled, argument))
            if isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool | slice | dict):
                raise _Unknown
            return argument

        args = tuple(map(filled, that_arrive(node.target, node.args)))
        kwargs = {name: filled(value) for name, value in node.kwargs.items() if name not in NEVER_ARRIVE}
        specs = tuple(self._specs[slot] for slot in places)
        outputs, structure = _results(node)
        compute = None
        if rule.promotion is not Promotion.NONE:
            common = promotion.common_dtype(
                [(spec.dtype, len(spec.size)) for spec in specs], list(_numbers((args, *kwargs.values())))
            )
            compute = promotion.float_dtype(common) if rule.promotion is Promotion.FLOAT else common
        plan = Plan(rule.op, (args, kwargs), specs, (), outputs, structure, compute, int(rule.draws(args, kwargs)))
        return plan, list(places)


def _results(node: Node) -> tuple[tuple[Spec, ...], tuple[int, ...]]:
    """Return the specs of the results that are read, and their nesting."""
    results = node.meta.get("val")
    if isinstance(results, torch.Tensor):
        return (_spec(results),), (-1,)
    if isinstance(results, list) or (isinstance(results, tuple) and len(results) == 1):
        return tuple(map(_spec, results)), (len(results),)
    if not isinstance(results, tuple):
        raise _Unknown
    read = {user.args[1] for user in node.users}
    specs: list[Spec] = []
    structure: list[int] = []
    for position, result in enumerate(results):
        if isinstance(result, list):
            specs += map(_spec, result)
            structure.append(len(result))
        elif result is None or position not in read:
            structure.append(-2)
        else:
            specs.append(_spec(result))
            structure.append(-1)
    return tuple(specs), tuple(structure)


def _spec(value: object) -> Spec:
    if not isinstance(value, torch.Tensor) or any(not isinstance(n, int) for n in value.shape):
        raise _Unknown
    if value.dtype not in dtypes.TO_JAX:
        raise _Unknown
    size = tuple(value.shape)
    return spec_of(size, contiguous_stride(size), value.dtype)


def _numbers(arguments: Any) -> Any:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _numbers(argument)
        elif isinstance(argument, bool | int | float | complex):
            yield argument
