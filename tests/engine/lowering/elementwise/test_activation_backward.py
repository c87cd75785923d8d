"""Gradients of the activation functions agree with PyTorch on the CPU."""

from typing import Any

import pytest
import torch

from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule
from tests.support.values import FLOATS, INTEGERS, edge_values

aten = torch.ops.aten

# Arguments after the gradient and the operand.
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.gelu_backward.default, (), {}),
    (aten.gelu_backward.default, (), {"approximate": "tanh"}),
    (aten.silu_backward.default, (), {}),
    (aten.mish_backward.default, (), {}),
    (aten.threshold_backward.default, (0,), {}),
    (aten.threshold_backward.default, (0.3,), {}),
    (aten.hardtanh_backward.default, (-1.0, 2.0), {}),
    (aten.leaky_relu_backward.default, (0.01, False), {}),
    (aten.leaky_relu_backward.default, (0.2, True), {}),
    (aten.hardswish_backward.default, (), {}),
    (aten.hardsigmoid_backward.default, (), {}),
    (aten.softplus_backward.default, (1, 20), {}),
    (aten.softplus_backward.default, (2.5, 3.0), {}),
    (aten.softshrink_backward.default, (0.5,), {}),
    (aten.hardshrink_backward.default, (0.5,), {}),
]


def gradient_and_operand(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    # Without NaN: for a clamped one PyTorch answers by the place in the vector registers.
    operand = edge_values(dtype)[:-1]
    gradient = torch.tensor([1.0, -0.5, 0.0, 3.0], dtype=dtype)[:, None]
    both = torch.broadcast_tensors(gradient, operand)
    return both[0].contiguous(), both[1].contiguous()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("changing", [False, True])
def test_gradients_agree_everywhere(dtype: torch.dtype, changing: bool) -> None:
    gradient, operand = gradient_and_operand(dtype)
    calls = [call(op, gradient, operand, *args, **kwargs) for op, args, kwargs in CALLS]
    for is_result in (False, True):
        calls.append(call(aten.elu_backward.default, gradient, 1.3, 1.05, 0.7, is_result, operand))
    _, buffer = aten.log_sigmoid_forward(operand)
    calls.append(call(aten.log_sigmoid_backward.default, gradient, operand, buffer))
    check_calls(calls, changing=changing)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_gradient_of_a_learned_slope(dtype: torch.dtype) -> None:
    gradient, operand = gradient_and_operand(dtype)
    weight = torch.linspace(-1, 1, operand.shape[1]).to(dtype)[None]
    check_calls([call(aten._prelu_kernel_backward.default, gradient, operand, weight)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_gradient_of_a_gate(dtype: torch.dtype, dim: int) -> None:
    operand = torch.randn(4, 6, 2, generator=torch.Generator().manual_seed(1)).to(dtype)
    gradient = operand.narrow(dim, 0, operand.shape[dim] // 2) * 0.5
    check_calls([call(aten.glu_backward.default, gradient, operand, dim)])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_gradient_of_a_threshold_takes_integers(dtype: torch.dtype) -> None:
    operand = edge_values(dtype)
    check_calls([call(aten.threshold_backward.default, operand.flip(0), operand, 2)])


def test_zero_dim_and_empty_operands() -> None:
    for operand in (torch.tensor(-0.75), torch.zeros(0, 3)):
        check_calls(call(op, operand, operand, *args, **kwargs) for op, args, kwargs in CALLS)


def test_the_slope_of_mish_is_as_exact_where_it_levels_off() -> None:
    x = torch.linspace(4, 25, 5000)
    exact = torch.ops.aten.mish_backward(torch.ones_like(x).double(), x.double())
    error = (apply_rule(torch.ops.aten.mish_backward.default, torch.ones_like(x), x).double() - exact).abs()
    assert error.max() <= 3e-7
