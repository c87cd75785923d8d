"""Activation functions agree with PyTorch on the CPU."""

from typing import Any

import pytest
import torch

from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule
from tests.support.values import FLOATS, INTEGERS, edge_values

aten = torch.ops.aten

CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.relu.default, (), {}),
    (aten.gelu.default, (), {}),
    (aten.gelu.default, (), {"approximate": "tanh"}),
    (aten.silu.default, (), {}),
    (aten.mish.default, (), {}),
    (aten.elu.default, (), {}),
    (aten.elu.default, (1.3, 1.05, 0.7), {}),
    (aten.celu.default, (0.3,), {}),
    (aten.leaky_relu.default, (), {}),
    (aten.leaky_relu.default, (0.2,), {}),
    (aten.hardtanh.default, (), {}),
    (aten.hardtanh.default, (0, 6), {}),
    (aten.hardtanh.default, (-0.3, 0.7), {}),
    (aten.hardswish.default, (), {}),
    (aten.hardsigmoid.default, (), {}),
    (aten.softplus.default, (), {}),
    (aten.softplus.default, (2.5, 3.0), {}),
    (aten.softshrink.default, (), {}),
    (aten.softshrink.default, (2.0,), {}),
    (aten.hardshrink.default, (0.5,), {}),
    (aten.threshold.default, (0.3, 0.7), {}),
    (aten.log_sigmoid_forward.default, (), {}),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("changing", [False, True])
def test_activations_agree_everywhere(dtype: torch.dtype, changing: bool) -> None:
    operand = edge_values(dtype)
    # PyTorch's GELU of an infinity is infinite or NaN, as the dtype and the vector registers have it.
    finite_only = operand[~operand.isinf()]
    calls = [
        call(op, finite_only if op is aten.gelu.default else operand, *args, **kwargs) for op, args, kwargs in CALLS
    ]
    check_calls(calls, changing=changing)


def test_activations_keep_the_shape_of_zero_dim_and_empty_tensors() -> None:
    for operand in (torch.tensor(-0.75), torch.zeros(0, 3)):
        check_calls(call(op, operand, *args, **kwargs) for op, args, kwargs in CALLS)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_some_activations_take_integers(dtype: torch.dtype) -> None:
    operand = edge_values(dtype)
    calls = [call(aten.relu.default, operand), call(aten.threshold.default, operand, 2.5, 1.7)]
    check_calls([*calls, call(aten.hardtanh.default, operand, 1, 6)])


def test_the_sigmoid_linear_unit_takes_complex_numbers() -> None:
    check_calls([call(aten.silu.default, torch.tensor([1 + 1j, -2.5j, 3 + 0j]))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gates_and_learned_slopes(dtype: torch.dtype) -> None:
    operand = torch.randn(4, 6, 2, generator=torch.Generator().manual_seed(1)).to(dtype)
    calls = [call(aten.glu.default, operand, dim) for dim in (0, 1, -1)]
    calls += [call(aten._prelu_kernel.default, operand, torch.full((1, 6, 1), 0.2, dtype=dtype))]
    check_calls(calls)


def test_a_sum_may_be_rectified_at_once() -> None:
    one, other = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([[0.5], [-4.0]])
    check_calls([call(aten._add_relu.Tensor, one, one.flip(0)), call(aten._add_relu.Tensor, one, one, alpha=-0.5)])
    got = apply_rule(aten._add_relu.Scalar, other, 2.0)
    assert torch.equal(got, torch.tensor([[2.5], [0.0]]))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_as_near_the_truth_as_pytorch(approximate: str) -> None:
    operand = torch.linspace(-10, 10, 4001)
    exact = torch.nn.functional.gelu(operand.double(), approximate=approximate)
    theirs = (torch.nn.functional.gelu(operand, approximate=approximate).double() - exact).abs()
    ours = (apply_rule(aten.gelu.default, operand, approximate=approximate).double() - exact).abs()
    # Where the error function is near -1, its sum with 1 has few digits left, in PyTorch's GELU as in ours.
    scale = operand.abs() if approximate == "none" else exact.abs()
    allowed = torch.maximum(theirs, torch.finfo(torch.float32).eps * scale.clamp_min(1))
    assert (ours / allowed).max() <= 4
