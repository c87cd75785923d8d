"""An FX graph of aten operators as JAX operations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support.rules import to_jax, to_torch
from torch_xla._engine.lowering.fx_graphs import interpreter
from torch_xla._engine.metrics.observers import observers

aten = torch.ops.aten
X = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]])
UNKNOWN = aten._histogramdd_bin_edges.default
HALF = torch.tensor([0.5, 1.5, -2.0], dtype=torch.bfloat16)
CONJUGATE = torch.tensor([1j, 2.0, 1 + 1j]).conj()

FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "views": lambda x: x.t()[1:].reshape(-1).unsqueeze(0).expand(2, -1) * 2,
    "promotion": lambda x: x.long() + x.double().sum(),
    "a constant": lambda x: x.to(torch.bfloat16) + HALF,
    "a conjugate constant": lambda x: x * CONJUGATE,
    "several results": lambda x: torch.max(x, 1),
    "a list": lambda x: torch.cat([x, x.split(1)[0], torch.full((1, 3), 2.0)]),
    "memory nobody has written": lambda x: torch.empty_strided((2, 3), (1, 2), dtype=torch.int32).zero_() + x,
    "sizes": lambda x: x.sum() / x.shape[0],
    "strides": lambda x: torch.as_strided_scatter(x + 1, x[0, :2], (2,), (2,), 1) + (x * 2).as_strided((2, 3), (1, 2)),
}


def interpreted(module: GraphModule, *inputs: torch.Tensor, keys: Any = ()) -> Any:
    with jax.enable_x64(True):
        found = interpreter.interpret(module, [to_jax(each) for each in inputs], keys)
    return jax.tree.map(to_torch, found)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_graph_gives_what_the_function_does(function: Callable[[torch.Tensor], Any]) -> None:
    module = make_fx(torch.func.functionalize(function, remove="mutations_and_views"))(X)
    assert interpreter.operators_without_rule(module) == []
    found, expected = interpreted(module, X), function(X)
    found, expected = torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs.contiguous(), rtol=1e-6, atol=1e-6)


LAYERS: dict[str, Callable[..., Any]] = {
    "product": lambda x, w, b: x @ w.t(),
    "layer": lambda x, w, b: torch.nn.functional.linear(x, w, b),
    "layer of many": lambda x, w, b: torch.nn.functional.linear(x[None], w, b),
    "transpose": lambda x, w, b: torch.addmm(b, x, w.transpose(0, 1)),
    "permutation": lambda x, w, b: torch.mm(x, w.permute(1, 0)),
}


@pytest.mark.parametrize("function", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_a_layer_reads_its_weight_as_it_lies(function: Callable[..., Any], dtype: torch.dtype) -> None:
    given = X[:1].to(dtype), torch.arange(12.0).view(4, 3).to(dtype), torch.arange(4.0).to(dtype)
    module = make_fx(function)(*given)
    torch.testing.assert_close(interpreted(module, *given), function(*given))
    with jax.enable_x64(True):
        lowered = (
            jax.jit(lambda *arrays: interpreter.interpret(module, arrays, ())).lower(*map(to_jax, given)).as_text()
        )
    assert "dot_general" in lowered and "transpose" not in lowered


@pytest.mark.parametrize(
    "function", [lambda x: torch.addmm(x, x, x.t(), beta=2), lambda x: x @ x], ids=["scaled", "plain"]
)
def test_other_products_are_none(function: Callable[..., Any]) -> None:
    x = torch.arange(9.0).view(3, 3)
    torch.testing.assert_close(interpreted(make_fx(function)(x), x), function(x))


def test_draws_are_counted_and_take_their_keys_in_order() -> None:
    module = make_fx(lambda x: (aten.bernoulli.default(x), aten.bernoulli.default(x), x.sin()))(X.clamp(0, 1))
    assert interpreter.draws(module) == 2
    first, second = jax.random.key(1, impl="rbg"), jax.random.key(2, impl="rbg")
    half = torch.full((40, 40), 0.5)
    one, other, _ = interpreted(module, half, keys=[first, second])
    again, same, _ = interpreted(module, half, keys=[first, first])
    assert torch.equal(one, again) and torch.equal(one, same) and not torch.equal(one, other)


def test_operators_that_nothing_lowers_are_named() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(UNKNOWN, (graph.call_function(aten.sin.default, (x,)), [2])))
    module = GraphModule(torch.nn.Module(), graph)
    assert interpreter.operators_without_rule(module) == [UNKNOWN]
    with pytest.raises(NotImplementedError, match="aten._histogramdd_bin_edges.default has no lowering rule"):
        interpreted(module, X)


def test_views_are_lowered_by_the_rules_of_their_copies() -> None:
    rule = interpreter.rule_for(aten.permute.default)
    assert rule is not None and rule.op in (aten.permute.default, aten.permute_copy.default)


def test_strides_are_read_of_what_lies_in_order_and_up_to_its_end() -> None:
    module = make_fx(lambda x: (x * 2).as_strided((2,), (1,)))(X.t())
    assert interpreter.operators_without_rule(module) == [
        aten.as_strided.default
    ]  # there they say what the array does not
    beyond = make_fx(lambda x: (x * 2)[:1].as_strided((6,), (1,)))(X)
    assert interpreter.operators_without_rule(beyond) == [
        aten.as_strided.default
    ]  # it shows what its row does not have
    assert interpreter.operators_without_rule(make_fx(lambda x: (x * 2).as_strided((2,), (1,)))(X)) == []


def test_lines_and_watching() -> None:
    module = make_fx(lambda x: x.exp().log())(X)
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    assert interpreter.line_of(nodes[0]) is None
    nodes[0].stack_trace = '  File "a.py", line 3, in outer\n    f()\n  File "b.py", line 7, in inner\n    x.exp()\n'
    assert interpreter.line_of(nodes[0]) == ("b.py", 7, "inner")
    seen: list[tuple[str, Any, Any]] = []

    def watch(node: Any, given: Any, result: Any) -> None:
        seen.append((str(node.target), given[0][0], result))

    with observers.registered("watch_node", watch):
        interpreter.interpret(module, [jnp.asarray(X.numpy())], [])
    assert [name for name, _, _ in seen] == ["aten.exp.default", "aten.log.default"]
    np.testing.assert_array_equal(seen[1][1], seen[0][2])
    text = jax.jit(lambda x: interpreter.interpret(module, [x], [])).lower(jnp.ones(2)).as_text(debug_info=True)
    assert '"b.py":7' in text and "aten::exp" in text
