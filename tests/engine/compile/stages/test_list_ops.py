"""Operations on lists whose elements are each computed alone."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from torch_xla._engine.compile.jax_function import as_function
from torch_xla._engine.compile.stages.list_ops import Lists, length_of_lists
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.step import pending_graph

SIZES = [(2,), (3,), (2,)]


def recorded(case: str) -> tuple[Operation, tuple[Any, ...]]:
    """The one operation of a call on lists, and its numbers."""
    some, others = ([torch.full(size, 1.0 + n).to("xla") for n, size in enumerate(SIZES)] for _ in range(2))
    torch_xla.sync()
    results = {
        "add": lambda: torch._foreach_add(some, others, alpha=3),
        "scalars": lambda: torch._foreach_mul(some, [float(n) for n in range(3)]),
        "norm": lambda: torch._foreach_norm(some),
        "addcdiv": lambda: torch._foreach_addcdiv(some, others, some, value=0.5),
    }[case]()
    found = pending_graph.graph_of(list(results))
    (operation,) = found.graph.operations
    return operation, found.numbers


def run(operation: Operation, values: list[Any], numbers: Any) -> list[Any]:
    plan = operation.plan
    alone = Operation(plan, tuple(range(len(values))), 0, -1, len(values), -1)
    graph = Graph(plan.operands, (alone,), tuple(range(len(values), len(values) + len(plan.outputs))))
    return [np.asarray(each) for each in as_function(graph, list(numbers), [], [])(*values)]


@pytest.mark.parametrize("case", ["add", "scalars", "norm"])
def test_parts_compute_what_the_whole_does(case: str) -> None:
    operation, numbers = recorded(case)
    plan = operation.plan
    assert length_of_lists(plan) == len(SIZES)
    lists = Lists.of(plan)
    assert (lists.kind_of(0) == lists.kind_of(2)) and lists.kind_of(0) != lists.kind_of(1)
    values = [jnp.arange(1.0, 1 + spec.numel, dtype=np.float32).reshape(spec.size) for spec in plan.operands]
    whole = run(operation, values, numbers)
    seen: set[int] = set()
    for elements in (range(0, 2), range(2, 3)):
        part, operands, own, outputs = lists.part(elements)
        assert length_of_lists(part) == len(elements) and part is lists.part(elements)[0]
        found = run(Operation(part, (), 0, -1, 0, -1), [values[i] for i in operands], [numbers[i] for i in own])
        for index, result in zip(outputs, found, strict=True):
            np.testing.assert_array_equal(result, whole[index])
        seen.update(outputs)
    assert seen == set(range(len(plan.outputs)))


def test_equal_elements_make_equal_parts() -> None:
    operation, _ = recorded("addcdiv")
    lists = Lists.of(operation.plan)
    assert lists.part(range(0, 2))[0] is not lists.part(range(1, 3))[0]
    assert lists.part(range(0, 1))[0] is lists.part(range(2, 3))[0]


def test_what_all_elements_share_goes_into_every_part() -> None:
    states = [[torch.ones(3).to("xla") for _ in range(4)] for _ in range(4)]
    steps = [torch.ones(()).to("xla") for _ in range(4)]
    rate = torch.tensor(0.1).to("xla")
    torch_xla.sync()
    options = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
    torch._fused_adamw_(*states, [], steps, lr=rate, **options)  # type: ignore[call-overload]
    graph = pending_graph.graph_of([*states[0], *states[2], *states[3]]).graph
    (operation,) = graph.operations
    plan = operation.plan
    part, operands, numbers, outputs = Lists.of(plan).part(range(1, 3))
    # Two of each of the five lists, then the rate; all numbers; two of each of the results.
    assert len(operands) == 11 and plan.arguments[1]["lr"].index == operands[part.arguments[1]["lr"].index] == 20
    assert numbers == list(range(len(plan.numbers)))
    assert len(part.outputs) == len(outputs) == len(plan.outputs) // 2
    assert part.structure == tuple(2 if count == 4 else count for count in plan.structure)


def test_what_is_not_computed_alone_has_no_lists() -> None:
    x = torch.ones(2).to("xla")
    torch_xla.sync()
    for result in (torch.cat([x, x]), x + 1, torch.stack([x, x])):
        (operation,) = pending_graph.graph_of([result]).graph.operations
        assert length_of_lists(operation.plan) == 0
