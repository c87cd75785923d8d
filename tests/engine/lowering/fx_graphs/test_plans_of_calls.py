"""An FX graph as a graph of plans gives what it gives as one operation."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support.rules import to_jax
from torch_xla._engine.compile.jax_function import as_function
from torch_xla._engine.lowering.fx_graphs import interpreter, plans_of_calls

aten = torch.ops.aten
X = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]])

FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "views and numbers": lambda x: [x.t()[1:].reshape(-1) * 2.5, x.long() + 1],
    "a part of several results": lambda x: [torch.max(x, 1)[1]],
    "lists": lambda x: list(torch.cat([x, x]).split(1)[1:3]),
    "memory nobody has written": lambda x: [torch.empty(2, 3).zero_() + x],
    "draws": lambda x: [torch.bernoulli(x.clamp(0, 1)), torch.bernoulli(x.sigmoid())],
    "an input": lambda x: [x, x + 1],
}


def traced(function: Callable[[torch.Tensor], Any]) -> GraphModule:
    return make_fx(torch.func.functionalize(function, remove="mutations_and_views"))(X)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_call_by_call_and_as_one_give_the_same(function: Callable[[torch.Tensor], Any]) -> None:
    module = traced(function)
    graph = plans_of_calls.graph_of(module)
    assert graph is not None and len(graph.inputs) == 1
    calls = [node for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    assert [operation.operands for operation in graph.operations] and len(graph.operations) == len(calls)
    keys = [jax.random.key(number, impl="rbg") for number in range(interpreter.draws(module))]
    with jax.enable_x64(True):
        whole = interpreter.interpret(module, [to_jax(X)], keys)
        raw = [np.stack([np.asarray(jax.random.key_data(key)) for key in keys])] if keys else []
        apart = as_function(graph, [], [], [])(to_jax(X), *raw)
    for one, other in zip(whole, apart, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_equal_calls_share_a_plan() -> None:
    graph = plans_of_calls.graph_of(traced(lambda x: [((x + 1.0).sin() + 1.0).sin()]))
    assert graph is not None
    first, second, third, fourth = (operation.plan for operation in graph.operations)
    assert first is third and second is fourth and first is not second


def test_sizes_that_are_known_at_run_time_have_no_plan() -> None:
    module = make_fx(lambda x: [x.reshape(-1) * 2], tracing_mode="symbolic")(X)
    assert plans_of_calls.graph_of(module) is None
    graph = torch.fx.Graph()
    graph.output((graph.call_function(aten._histogramdd_bin_edges.default, (graph.placeholder("x"), [2])),))
    unknown = GraphModule(torch.nn.Module(), graph)
    next(iter(unknown.graph.nodes)).meta["val"] = X
    assert plans_of_calls.graph_of(unknown) is None
