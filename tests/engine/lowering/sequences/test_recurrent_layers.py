"""Recurrent layers on the CPU: what XLA is given to multiply in a loop, saturated gates, sizes that fill vectors."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

from tests.support.twins import check_same
from torch_xla._engine.lowering.sequences.recurrent_layers import Layer, recurrent_layer, recurrent_layer_backward

TIMES, SAMPLES, FEATURES, HIDDEN = 6, 16, 24, 32
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def arguments(cell: str, projected: bool) -> tuple[Any, ...]:
    shown = HIDDEN // 2 if projected else HIDDEN
    rows = GATES[cell] * HIDDEN
    shapes = [(rows, FEATURES), (rows, shown), (rows,), (rows,), *[(shown, HIDDEN)] * projected]
    weights = [jnp.full(shape, 0.1) for shape in shapes]
    first = jnp.zeros((1, SAMPLES, shown)), jnp.zeros((1, SAMPLES, HIDDEN)) if cell == "lstm" else None
    return jnp.ones((TIMES, SAMPLES, FEATURES)), None, *first, weights


def compiled(function: Callable[..., Any], *arguments: Any) -> str:
    return jax.jit(function).lower(*arguments).compile().as_text()


def in_loops(program: str, operation: str) -> list[str]:
    """The lines of that operation which come from the body of a loop."""
    return [line for line in program.splitlines() if f" {operation}(" in line and "while/body" in line]


@pytest.mark.parametrize(("cell", "projected"), [*((cell, False) for cell in GATES), ("lstm", True)])
def test_no_step_of_a_loop_multiplies_by_a_transposed_weight(cell: str, projected: bool) -> None:
    layer = Layer(cell, True, projected, 1, trained=True)
    given = arguments(cell, projected)
    results = recurrent_layer(layer, *given)
    wanted = [True] * (3 + layer.weights_of_a_direction)

    def backward(output: jax.Array, kept: Any, *given: Any) -> Any:
        return recurrent_layer_backward(layer, wanted, (output, None, None), *given, output, kept)

    for program in (
        compiled(lambda *given: recurrent_layer(layer, *given), *given),
        compiled(backward, results[0], results[3:], *given),
    ):
        products = in_loops(program, "dot")
        assert len(products) == 1 + projected
        for product in products:
            assert "lhs_contracting_dims={1}, rhs_contracting_dims={0}" in product
            right = re.search(r"dot\([^,]*, (%[\w.-]+)\)", product)
            assert right is not None and f"{right[1]} = f32" in program
            (layout,) = set(re.findall(re.escape(right[1]) + r" = f32\[\d+,\d+\](\{[\d,]+\})", program))
            assert layout == "{1,0}"


def test_an_lstm_takes_one_sigmoid_of_all_gates() -> None:
    program = compiled(
        lambda *given: recurrent_layer(Layer("lstm", True, False, 1, False), *given), *arguments("lstm", False)
    )
    (exponential,) = in_loops(program, "exponential")
    assert f"f32[{SAMPLES},{4 * HIDDEN}]" in exponential


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(FEATURES, HIDDEN, 2, bidirectional=True),
    "lstm, projected": lambda: nn.LSTM(FEATURES, HIDDEN, 2, proj_size=HIDDEN // 2),
    "gru": lambda: nn.GRU(FEATURES, HIDDEN, 2, bidirectional=True),
    "tanh": lambda: nn.RNN(FEATURES, HIDDEN, 2),
}


def gradients(make: Callable[[], nn.Module], factor: float, times: int, device: str) -> Any:
    torch.manual_seed(2)
    network = make()
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(factor)
    network = network.to(device)
    x = torch.randn(times, SAMPLES, FEATURES, device="cpu").to(device).requires_grad_()
    output, _ = network(x)
    slopes = torch.linspace(-1, 1, output.numel(), device="cpu").reshape(output.shape).to(device)
    return [output, *torch.autograd.grad((output * slopes).sum(), [x, *network.parameters()])]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("make", list(NETWORKS.values()), ids=list(NETWORKS))
@pytest.mark.parametrize("times", [1, TIMES])
def test_sizes_that_fill_vectors(make: Callable[[], nn.Module], times: int) -> None:
    check_same(lambda device: gradients(make, 1.0, times, device))


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_saturated_gates(name: str) -> None:
    check_same(lambda device: gradients(NETWORKS[name], 20.0, 2, device), rtol=1e-3, atol=1e-3)
