"""The shardings of a program's results."""

from dataclasses import replace

import torch

import torch_xla  # noqa: F401
from torch_xla._engine.compile.output_shardings import of_outputs
from torch_xla._engine.ir.graph import Graph
from torch_xla._engine.ir.sharding import ANY, Sharding
from torch_xla._engine.ir.value_spec import sharded
from torch_xla._engine.sharding import placement
from torch_xla._engine.step import pending_graph

ROWS, COLUMNS = Sharding(((0,),)), Sharding(((), (0,)))


def recorded(*tensors: torch.Tensor, lies: dict[int, Sharding]) -> Graph:
    """The graph of tensors; those of its inputs with these places are divided so."""
    graph = pending_graph.graph_of(list(tensors)).graph
    inputs = [sharded(spec, lies.get(index)) for index, spec in enumerate(graph.inputs)]
    return replace(graph, inputs=tuple(inputs))


def test_what_is_computed_element_by_element_lies_as_its_operands() -> None:
    x, y = torch.ones(4, 4).to("xla"), torch.ones(4, 4).to("xla")
    assert of_outputs(recorded(x * 2 + y, lies={0: ROWS}), ()) == [ROWS]
    assert of_outputs(recorded(x * 2 + y, lies={0: ROWS, 1: ROWS}), ()) == [ROWS]
    assert of_outputs(recorded(x * 2 + y, lies={}), ()) == [None]
    assert of_outputs(recorded(x * 2 + y, lies={0: ROWS, 1: COLUMNS}), ()) == [ANY]


def test_what_takes_a_donated_place_lies_as_before() -> None:
    x, y = torch.ones(4, 4).to("xla"), torch.ones(4, 4).to("xla")
    assert of_outputs(recorded(x * 2 + y, lies={0: ROWS, 1: COLUMNS}), (0,)) == [ROWS]


def test_what_is_not_computed_element_by_element_is_left_to_xla() -> None:
    x, y = torch.ones(4, 4).to("xla"), torch.ones(4, 4).to("xla")
    assert of_outputs(recorded(x @ y, lies={0: ROWS}), ()) == [ANY]
    assert of_outputs(recorded((x * 2).sum(0), lies={0: ROWS}), ()) == [ANY]


def test_a_mark_counts() -> None:
    x, y = torch.ones(4, 4).to("xla"), torch.ones(4, 4).to("xla")
    assert of_outputs(recorded(placement.constrained(x @ y, COLUMNS), lies={0: ROWS}), ()) == [COLUMNS]


def test_elements_of_lists_lie_each_for_itself() -> None:
    parameters = [torch.ones(4, 4).to("xla"), torch.ones(4, 4).to("xla")]
    states = [torch.zeros_like(each) for each in parameters]
    torch._foreach_add_(states, parameters)
    assert of_outputs(recorded(*states, lies={}), ()) == [None, None]
    assert of_outputs(recorded(*states, lies={0: ROWS, 1: COLUMNS}), ()) == [ROWS, COLUMNS]
