"""DOC"""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from torch_xla._engine.diagnostics.values.graph_json import Opaque, decode, encode
from torch_xla._engine.ir.graph import Graph
from torch_xla._engine.step.pending_graph import graph_of


def shape_of(graph: Graph) -> list[Any]:
    """Return the properties that equal graphs share, with operators by their names."""
    rows: list[Any] = [graph.inputs, graph.outputs]
    for operation in graph.operations:
        plan = operation.plan
        rows.append((str(plan.op), plan.arguments, plan.numbers, plan.outputs, plan.structure, plan.compute_dtype))
        rows.append((operation.operands, operation.first_number, operation.draw, operation.first_output, plan.draws))
    return rows


def test_a_graph_comes_back_from_json() -> None:
    x = torch.rand(4, 6).to("xla")
    y = torch.softmax(x[:, ::2] * 2.0, -1).to(torch.bfloat16)
    z = torch.cat([y, y], dim=1).clamp(min=-float("inf"), max=0.5) + torch.rand(4, 6, device="xla").mul_(3)
    w = torch.full((2,), 1 + 2j, device="xla").conj().sum()
    graph = graph_of([z, w]).graph
    data = json.loads(json.dumps(encode(graph)))
    assert shape_of(decode(data)) == shape_of(graph)


def test_an_argument_that_is_no_data_is_left_out() -> None:
    graph = graph_of([torch.rand(2).to("xla").sin()]).graph
    operation = graph.operations[0]
    odd = replace(operation, plan=replace(operation.plan, arguments=((object(),), {})))
    decoded = decode(encode(replace(graph, operations=(odd,))))
    assert isinstance(decoded.operations[0].plan.op, Opaque) and decoded.operations[0].plan.op == "aten::sin"


def test_an_operator_that_this_pytorch_lacks_is_named() -> None:
    data = encode(graph_of([torch.rand(2).to("xla").sin()]).graph)
    data["operations"][0]["op"] = "aten::sinn"
    with pytest.raises(ValueError, match=r"this PyTorch, .*, has no operator aten::sinn"):
        decode(data)
