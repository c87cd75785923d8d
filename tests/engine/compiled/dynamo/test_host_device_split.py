"""A graph in three parts: before, on the device, after."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from torch_xla._engine.compiled.dynamo.host_device_split import Parts, Unsplittable, evaluate, results, split, text_of
from torch_xla._engine.compiled.loops.loop_bodies import pure_graph
from torch_xla.experimental.scan import scan

aten = torch.ops.aten


def graph_of(function: Callable[..., Any], *examples: torch.Tensor) -> GraphModule:
    return pure_graph(function, list(examples))


X = torch.ones(3)


def called(parts: Parts, part: str) -> list[str]:
    return [str(node.target) for node in getattr(parts, part) if "_assert" not in str(node.target)]


def test_what_the_host_has_goes_up_before_and_what_it_wants_comes_down_after() -> None:
    def function(x: torch.Tensor, host: torch.Tensor) -> tuple[torch.Tensor, ...]:
        up = (host * 2).to("xla")
        return (x + up).cpu() + 1, x * 3

    parts = split(graph_of(function, X.to("xla"), X), "test")
    assert called(parts, "before") == ["aten.mul.Tensor", "aten._to_copy.default"]
    assert called(parts, "device") == ["aten.add.Tensor", "aten.mul.Tensor"]
    assert called(parts, "after") == ["aten._to_copy.default", "aten.add.Tensor"]
    assert len(parts.inputs) == 2 and len(parts.outputs) == 2 and parts.name.startswith("compiled::test_")
    values: dict[Any, Any] = dict(zip(parts.placeholders, (X.to("xla"), X), strict=True))
    evaluate(parts.before, values)
    values.update(zip(parts.outputs, parts.module(*(values[node] for node in parts.inputs)), strict=True))  # type: ignore[misc]
    evaluate(parts.after, values)
    first, second = results(parts.results, values)
    assert first.tolist() == [4, 4, 4] and first.device.type == "cpu" and second.tolist() == [3, 3, 3]


def test_scalars_of_the_host_travel_together() -> None:
    numbers = [torch.tensor(float(n)) for n in range(3)]
    parts = split(graph_of(lambda x, a, b, c: (x + a, x * b, x - c), X.to("xla"), *numbers), "test")
    assert len(parts.inputs) == 1 and [len(nodes) for nodes in parts.scalars] == [3]
    found = parts.module(X.to("xla"), torch.tensor([0.0, 1.0, 2.0]).to("xla"))  # type: ignore[misc]
    assert [each.tolist() for each in found] == [[1, 1, 1], [1, 1, 1], [-1, -1, -1]]


def test_names_say_what_a_graph_does() -> None:
    def named(function: Callable[..., Any], *examples: torch.Tensor) -> str:
        return split(graph_of(function, *examples), "test").name

    x = X.to("xla")
    assert named(lambda x: (x + 1,), x) == named(lambda y: (y + 1,), x)
    others = [
        named(lambda x: (x + 2,), x),
        named(lambda x: (x + 1.0,), x),
        named(lambda x: (x + 1,), torch.ones(4).to("xla")),
        named(lambda x: (x + 1,), x.double()),
        named(lambda x: (x - 1,), x),
    ]
    assert len({*others, named(lambda x: (x + 1,), x)}) == 6
    one, other = (torch.fx.Graph() for _ in range(2))
    for graph, order in ((one, (0, 1)), (other, (1, 0))):
        given = [graph.placeholder("a"), graph.placeholder("b")]
        graph.output((graph.call_function(aten.sub.Tensor, (given[order[0]], given[order[1]])),))
    assert text_of(GraphModule(torch.nn.Module(), one)) != text_of(GraphModule(torch.nn.Module(), other))


def test_tensors_that_a_graph_inside_holds_are_part_of_the_name() -> None:
    def named(value: float, dtype: torch.dtype, kind: torch.dtype = torch.float32) -> str:
        def body(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return carry + torch.tensor([value, 0.0, 2.0], dtype=dtype, device="xla").to(kind), x

        return split(graph_of(lambda c, xs: scan(body, c, xs), X.to("xla"), torch.ones(2, 3).to("xla")), "test").name

    assert named(1.0, torch.float32) == named(1.0, torch.float32)
    assert len({named(1.0, torch.float32), named(10.0, torch.float32), named(-0.0, torch.float32)}) == 3
    assert named(1.0, torch.float64) != named(1.0, torch.float32)


def test_what_cannot_be_split_says_why() -> None:
    def goes_up_again(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (((x * 2).cpu() + 1).to("xla") * 2,)

    with pytest.raises(Unsplittable, match="needs a value that was on the host"):
        split(graph_of(goes_up_again, X.to("xla")), "test")
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = X.to("xla")
    node = graph.call_function(aten._histogramdd_bin_edges.default, (x, [2]))
    node.meta["val"] = [X.to("xla")]
    graph.output((node,))
    with pytest.raises(Unsplittable, match="no rule lowers aten._histogramdd_bin_edges.default"):
        split(GraphModule(torch.nn.Module(), graph), "test")
    with pytest.raises(Unsplittable, match="add_.Tensor writes to its arguments"):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        graph.output((graph.call_function(aten.add_.Tensor, (x, 1)),))
        split(GraphModule(torch.nn.Module(), graph), "test")


def test_writes_come_at_the_end() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = X.to("xla")
    double = graph.call_function(aten.mul.Tensor, (x, 2))
    double.meta["val"] = X.to("xla")
    write = graph.call_function(aten.copy_.default, (x, double))
    write.meta["val"] = X.to("xla")
    graph.output((write,))
    parts = split(GraphModule(torch.nn.Module(), graph), "test")
    assert parts.writes == [(x, double)] and parts.results == (x,) and parts.outputs == [double]
