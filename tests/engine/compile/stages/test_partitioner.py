"""The pieces of a graph in stages: every operation in one of them, cut where the graph repeats itself."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_xla
from torch_xla._engine.compile.stages.partitioner import in_stages
from torch_xla._engine.ir.call_plan import Operand, Plan, interned
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.ir.value_spec import Spec, spec_of
from torch_xla._engine.step import pending_graph

SMALL, LARGE = spec_of((), (), torch.float32), spec_of((1000,), (1,), torch.float32)


def plan(name: str, size: Spec = SMALL, operands: int = 1) -> Plan:
    given = tuple(Operand(index) for index in range(operands))
    return interned(Plan(f"op {name} of test_partitioner", (given, {}), (SMALL,) * operands, (), (size,)))


def chain(plans: list[Plan]) -> Graph:
    """Each operation reads what the one before it made."""
    operations = [Operation(each, (index,), 0, -1, index + 1, -1) for index, each in enumerate(plans)]
    return Graph((SMALL,), tuple(operations), (len(plans),))


@given(st.text("ab", min_size=1, max_size=6), st.integers(1, 12), st.text("xyz", max_size=4), st.integers(0, 30))
def test_every_operation_is_a_piece_of_one_stage_in_order(word: str, times: int, after: str, most: int) -> None:
    graph = chain([plan(letter) for letter in word * times + after])
    stages = in_stages(graph, most)
    found = [piece for stage in stages for piece in stage]
    assert [piece.operation for piece in found] == list(range(len(graph.operations)))
    assert [(piece.plan, piece.operands, piece.outputs) for piece in found] == [
        (each.plan, each.operands, (each.first_output,)) for each in graph.operations
    ]
    assert all(stages) and len(stages) <= max(1, most)


def names(stages: list[list[Any]]) -> list[str]:
    return ["".join(str(piece.plan.op).split()[1] for piece in stage) for stage in stages]


def test_layers_are_stages() -> None:
    assert names(in_stages(chain([plan(letter) for letter in "xy" + "abcd" * 7 + "z"]), 30)) == [
        "xy",
        *["abcd"] * 7,
        "z",
    ]


def test_as_many_layers_are_one_stage_as_leave_few_of_them() -> None:
    found = names(in_stages(chain([plan(letter) for letter in "abcd" * 24]), 8))
    assert found == ["abcd" * 4] * 6


def test_layers_are_cut_where_least_goes_from_one_to_the_next() -> None:
    # The result of `b` is large, and only `c` reads it.
    plans = [plan(letter, LARGE if letter != "d" else SMALL) for letter in "abcd" * 7]
    assert names(in_stages(chain(plans[1:]), 30))[1] == "abcd"


def test_what_repeats_too_little_is_one_stage() -> None:
    short = chain([plan(letter) for letter in "abcd" * 4])
    assert len(in_stages(short, 30)) == 1  # it saves 12 operations
    long = chain([plan(letter) for letter in "abcd" * 9])
    assert len(in_stages(long, 30)) > 1
    assert len(in_stages(long, 2)) == 1


@pytest.mark.parametrize("updates", [1, 2])
def test_operations_on_lists_are_cut_along_their_lists(updates: int) -> None:
    parameters = [torch.ones(n % 2 + 1).to("xla") for n in range(24)]
    gradients = [torch.ones(n % 2 + 1).to("xla") for n in range(24)]
    torch_xla.sync()
    for _ in range(updates):
        torch._foreach_mul_(parameters, gradients)
        torch._foreach_add_(parameters, gradients)
    graph = pending_graph.graph_of(parameters).graph
    stages = in_stages(graph, 30)
    assert len(graph.operations) == 2 * updates and len(stages) > 1
    made: set[int] = set(range(len(graph.inputs)))
    for piece in (piece for stage in stages for piece in stage):
        assert made.issuperset(piece.operands) and made.isdisjoint(piece.outputs)
        made.update(piece.outputs)
    assert made == set(range(len(graph.specs)))


def test_lists_whose_elements_need_each_other_are_not_cut() -> None:
    some = [torch.ones(1).to("xla") for _ in range(24)]
    torch_xla.sync()
    first = torch._foreach_add(some, 1.0)
    alone = torch._foreach_mul(first, first)
    # The second operation reads the first one's result for the next element.
    turned = torch._foreach_mul(first, [*first[1:], first[0]])
    assert len(in_stages(pending_graph.graph_of(alone).graph, 30)) > 1
    (stage,) = in_stages(pending_graph.graph_of(turned).graph, 30)
    assert [piece.operation for piece in stage] == [0, 1]
