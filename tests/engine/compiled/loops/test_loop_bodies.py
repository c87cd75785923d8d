"""Functions that become the bodies of loops: graphs of functional operators."""

from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xla._engine.compiled.loops import loop_bodies

aten = torch.ops.aten


def targets(graph: Any) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_a_graph_writes_to_nothing_and_computes_the_same() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.clone()
        y[0] = 5
        return (y.mul_(2),)

    x = torch.ones(3).to("xla")
    graph = loop_bodies.pure_graph(function, [x])
    assert not any(target._schema.is_mutable for target in targets(graph) if hasattr(target, "_schema"))
    assert graph(x)[0].tolist() == [10, 2, 2] and x.tolist() == [1, 1, 1]


def test_what_only_looks_at_values_is_left_out() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch._assert_async((x < 1).all(), "no")
        return (torch.linalg.solve(x, x), torch.linalg.cholesky(x))

    x = torch.eye(2).to("xla")
    graph = loop_bodies.pure_graph(function, [x])
    assert aten._linalg_solve_ex.default in targets(graph) and len(graph(x)) == 2
    assert not {str(each) for each in targets(graph)} & {"with_effects", "aten._assert_async.msg"}


def test_a_call_is_one_operation_whose_results_nest_as_the_function_says() -> None:
    def function(x: torch.Tensor, factor: float, *, more: dict[str, torch.Tensor]) -> Any:
        return {"scaled": x * factor, "rest": [more["y"] + 1, x.sum()]}

    x, y = torch.ones(2).to("xla"), torch.zeros(3).to("xla")
    leaves, tree = pytree.tree_flatten(((x, 2.5), {"more": {"y": y}}))
    call = loop_bodies.traced_call(function, leaves, tree)
    for factor in (1, 2):
        found = call([x * factor, y])
        assert found["scaled"].tolist() == [2.5 * factor] * 2 and found["rest"][0].tolist() == [1, 1, 1]
        assert found["rest"][1].item() == 2 * factor
