"""A graph whose sizes grow as one operation: its name, and the numbers that a rule has to know."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

from torch_xla._engine.compile import symbolic_length
from torch_xla._engine.compile.symbolic_length import GROWING, Growth, StaticNumbers, computed, graph_of
from torch_xla._engine.ir.call_plan import Number, Operand, Plan
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.ir.value_spec import contiguous_stride, spec_of
from torch_xla._engine.lowering.machinery import capacity_ops
from torch_xla._engine.lowering.machinery.lower_call import NeedsStaticNumber


def graph(n: int, fill: float = 0.0) -> Graph:
    """Returns the first elements of a row of eight, as many as its number says, and `fill` up to `n`."""
    room, made = (spec_of((size,), contiguous_stride((size,)), torch.float32) for size in (8, n))
    plan = Plan(capacity_ops.PAD, ((Operand(0), Number(0), n, fill), {}), (room,), (int,), (made,))
    total = spec_of((), (), torch.float32)
    added = Plan(torch.ops.aten.sum.default, ((Operand(0),), {}), (made,), (), (total,))
    operations = Operation(plan, (0,), 0, -1, 1, 0), Operation(added, (1,), 1, -1, 2, 0)
    return Graph((room,), operations, (2,))


def test_it_has_the_inputs_and_outputs_of_the_graph_and_a_length() -> None:
    made = graph_of(Growth((graph(2), graph(7), graph(8)), (2, 7, 8)))
    (operation,) = made.operations
    assert operation.plan.op == GROWING and operation.plan.numbers == (int, int)
    assert made.inputs == graph(8).inputs and [made.specs[slot] for slot in made.outputs] == [graph(8).specs[2]]
    row = np.arange(1, 9, dtype=np.float32)
    for length in (2, 5, 8):
        (found,) = jax.jit(lambda n, row=row: computed(operation.plan, [row], [3, n], None))(length)
        assert found == 1 + 2 + (3 if length > 2 else 0)


def test_other_graphs_have_other_names() -> None:
    names = {str(Growth((graph(2, fill), graph(7, fill), graph(8, fill)), (2, 7, 8))) for fill in (0.0, 0.0, 1.0)}
    assert len(names) == 2


def test_numbers_that_a_rule_has_to_know_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(plan: Plan, operands: list[Any], numbers: list[Any], key: Any) -> list[Any]:
        raise NeedsStaticNumber

    monkeypatch.setattr(symbolic_length, "lower", lower)
    (operation,) = graph_of(Growth((graph(2), graph(7), graph(8)), (2, 7, 8))).operations
    with pytest.raises(StaticNumbers) as found:
        computed(operation.plan, [np.ones(8, np.float32)], [3, 8], None)
    assert list(found.value.numbers) == [0]
