"""Functions that become the bodies of loops: graphs of functional operators."""

from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xla._engine.dynamo import bodies

aten = torch.ops.aten


def targets(graph: Any) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_a_graph_writes_to_nothing_and_computes_the_same() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.clone()
        y[0] = 5
        return (y.mul_(2),)

    x = torch.ones(3).to("xla")
    graph = bodies.pure_graph(function, [x])
    assert not any(target._schema.is_mutable for target in targets(graph) if hasattr(target, "_schema"))
    assert graph(x)[0].tolist() == [10, 2, 2] and x.tolist() == [1, 1, 1]


def test_assertions_are_left_out_of_graphs_inside_too() -> None:
    outer, inner = torch.fx.Graph(), torch.fx.Graph()
    x = inner.placeholder("x")
    inner.call_function(aten._assert_async.msg, (x, "no"))
    inner.output((inner.call_function(aten.sin.default, (x,)),))
    root = torch.nn.Module()
    root.body = torch.fx.GraphModule(torch.nn.Module(), inner)
    x = outer.placeholder("x")
    outer.call_function(aten._assert_async.default, (x,))
    outer.output((outer.get_attr("body"),))
    module = torch.fx.GraphModule(root, outer)
    bodies.leave_out_assertions(module)
    assert targets(module) == [] and targets(module.body) == [aten.sin.default]


def test_a_call_is_one_operation_whose_results_nest_as_the_function_says() -> None:
    def function(x: torch.Tensor, factor: float, *, more: dict[str, torch.Tensor]) -> Any:
        return {"scaled": x * factor, "rest": [more["y"] + 1, x.sum()]}

    x, y = torch.ones(2).to("xla"), torch.zeros(3).to("xla")
    leaves, tree = pytree.tree_flatten(((x, 2.5), {"more": {"y": y}}))
    call = bodies.traced_call(function, leaves, tree)
    for factor in (1, 2):
        found = call([x * factor, y])
        assert found["scaled"].tolist() == [2.5 * factor] * 2 and found["rest"][0].tolist() == [1, 1, 1]
        assert found["rest"][1].item() == 2 * factor
