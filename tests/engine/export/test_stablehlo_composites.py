"""Marked parts of a graph become composites."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from torch_xla._engine.export.stablehlo_composites import with_composites
from torch_xla._engine.lowering.fx_graphs import interpreter

mark = torch.ops.xla.mark_tensor
X = torch.tensor([1.0, -2.0, 0.5])


def graph_of(function: Callable[..., object]) -> GraphModule:
    return make_fx(function)(X)


def text_of(module: GraphModule) -> str:
    return jax.jit(lambda x: interpreter.interpret(module, [x], ())).lower(jnp.asarray(X.numpy())).as_text()


def test_a_part_is_one_call_and_the_values_stay() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        outside = x * 3
        inside = mark(x + 1, "test.net", 0, "a", True, '{"rate": 0.5}')
        return mark(inside.sin() + outside, "test.net", 0, "a", False) * 2

    module = with_composites(graph_of(function))
    found = jax.jit(lambda x: interpreter.interpret(module, [x], ()))(X.numpy())
    np.testing.assert_allclose(found, ((X + 1).sin() + X * 3) * 2, rtol=1e-6)
    text = text_of(module)
    assert (
        text.count('stablehlo.composite "test.net"') == 1 and "rate = 5.0" in text and "mark_tensor" not in module.code
    )


def test_one_inside_another_and_two_of_one_name() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        outer = mark(x, "test.outer", 0, "a", True)
        inner = mark(outer * 2, "test.inner", 0, "b", True)
        done = mark(inner.exp(), "test.inner", 0, "b", False)
        again = mark(mark(done + 1, "test.inner", 0, "c", True).exp(), "test.inner", 0, "c", False)
        return mark(again - 1, "test.outer", 0, "a", False)

    module = with_composites(graph_of(function))
    text = text_of(module)
    assert text.count('stablehlo.composite "test.outer"') == 1 and text.count('stablehlo.composite "test.inner"') == 2
    np.testing.assert_allclose(
        interpreter.interpret(module, [jnp.asarray(X.numpy())], ()), ((X * 2).exp() + 1).exp() - 1, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda x: mark(x, "test.net", 0, "a", True) + 1,
            r"the outputs of composite 'test.net' are marked with positions \[\]",
        ),
        (lambda x: mark(x, "test.net", 0, "a", False) + 1, "the inputs of composite 'test.net'"),
        (lambda x: mark(mark(x, "a b", 0, "a", True), "a b", 0, "a", False), "the name of a composite has letters"),
        (
            lambda x: mark(mark(x, "test.net", 1, "a", True), "test.net", 0, "a", False),
            r"positions \[1\]; expected 0, 1",
        ),
    ],
)
def test_marks_that_do_not_fit_are_refused(function: Callable[..., object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        with_composites(graph_of(function))


def test_a_part_that_draws_is_refused() -> None:
    def draws(x: torch.Tensor) -> torch.Tensor:
        inside = mark(x.sigmoid(), "test.net", 0, "a", True)
        return mark(torch.bernoulli(inside), "test.net", 0, "a", False)

    with pytest.raises(NotImplementedError, match="composite 'test.net' draws random numbers"):
        with_composites(graph_of(draws))
    plain = graph_of(lambda x: x + 1)
    assert with_composites(plain) is plain
