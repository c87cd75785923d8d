"""Recorded operations as a graph: outputs in the requested order, inputs, numbers and lines."""

import pytest
import torch

import torch_xla
from torch_xla._engine.ir.graph import decode
from torch_xla._engine.metrics import counters
from torch_xla._engine.step.pending_graph import graph_of, is_pending, live_graph, on_xla
from torch_xla._engine.tensor.device import device_at
from torch_xla._engine.tensor.storage import value_of


def ops(tensors: list[torch.Tensor]) -> list[str]:
    return [str(operation.plan.op) for operation in graph_of(tensors).graph.operations]


def test_the_graph_holds_what_its_outputs_need_and_nothing_else() -> None:
    x = torch.arange(3.0).to("xla")
    a, b = x + 2.5, x * 3.5
    c = a.exp()
    assert ops([c]) == ["aten.add.Tensor", "aten.exp.default"] and ops([b]) == ["aten.mul.Tensor"]
    found = graph_of([c, b, x])
    assert found.numbers == (2.5, 3.5) and found.inputs == (value_of(x),)
    assert len(found.graph.outputs) == 3 and found.graph.outputs[2] == 0  # one that is computed is an input
    assert [line[2] for line in found.lines if line] == [
        "test_the_graph_holds_what_its_outputs_need_and_nothing_else"
    ] * 3
    assert is_pending(c) and not is_pending(x) and not counters.value_of("UncachedCompile")


def test_its_lowering_is_that_of_the_program() -> None:
    x = torch.arange(3.0).to("xla")
    y = x + 2.5
    lowered = graph_of([y]).lowered()
    (result,) = lowered.compile()(value_of(x).buffer)
    assert result.tolist() == y.tolist() == [2.5, 3.5, 4.5]


def test_what_the_next_sync_would_run_is_what_somebody_holds() -> None:
    torch_xla.sync()
    x = torch.arange(3.0).to("xla")
    kept, gone = x + 1.5, x * 2.5
    del gone
    device = device_at(0)
    assert [str(each.plan.op) for each in live_graph(device).graph.operations] == ["aten.add.Tensor"]
    assert live_graph(device).graph == graph_of([kept]).graph
    assert len(decode(device.tape.code)[1]) == 2  # looking runs nothing and changes nothing
    torch_xla.sync()
    assert not live_graph(device).graph.operations


def test_a_view_is_shown_with_the_read_of_its_base() -> None:
    x = torch.arange(6.0).view(2, 3).to("xla")
    assert ops([x.t()[1:]]) != [] and graph_of([x.t()[1:]]).inputs == (value_of(x),)
    assert graph_of([torch.empty(2, device="xla")]).graph.operations[0].plan.op is torch.ops.aten.zeros.default


def test_tensors_of_other_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"^Expected XLA tensor. Got: torch.FloatTensor$"):
        graph_of([torch.ones(1)])
    x = torch.ones(1, device="xla")
    assert on_xla(x) is x
