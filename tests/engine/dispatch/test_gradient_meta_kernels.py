"""Gradients have the CPU's strides and dtypes, in whatever order their operands are."""

from collections.abc import Callable

import pytest
import torch

from torch_xla.experimental.eager import eager_mode_context

aten = torch.ops.aten

Gradient = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


GRADIENTS: dict[str, Gradient] = {
    "binary_cross_entropy": lambda grad, x: aten.binary_cross_entropy_backward(grad, x.sigmoid(), x.sigmoid(), None, 0),
    "elu": lambda grad, x: aten.elu_backward(grad, 1.0, 1.0, 1.0, False, x),
    "glu": lambda grad, x: aten.glu_backward(grad[..., :2], x, 3),
    "hardsigmoid": lambda grad, x: aten.hardsigmoid_backward(grad, x),
    "hardswish": lambda grad, x: aten.hardswish_backward(grad, x),
    "hardtanh": lambda grad, x: aten.hardtanh_backward(grad, x, -1.0, 1.0),
    "huber": lambda grad, x: aten.huber_loss_backward(grad, x, x * 2, 0, 1.0),
    "layer_norm": lambda grad, x: aten.native_layer_norm_backward(
        grad, x, [4], x.new_zeros(2, 4, 4, 1), x.new_ones(2, 4, 4, 1), None, None, [True, False, False]
    )[0],
    "leaky_relu": lambda grad, x: aten.leaky_relu_backward(grad, x, 0.1, False),
    "log_softmax": lambda grad, x: aten._log_softmax_backward_data(grad, x, 1, torch.float32),
    "logit": lambda grad, x: aten.logit_backward(grad, x, 0.1),
    "batch_norm": lambda grad, x: aten.native_batch_norm_backward(
        grad, x, None, None, None, x.new_zeros(4), x.new_ones(4), True, 1e-5, [True, False, False]
    )[0],
    "mse": lambda grad, x: aten.mse_loss_backward(grad, x, x * 2, 0),
    "silu": lambda grad, x: aten.silu_backward(grad, x),
    "smooth_l1": lambda grad, x: aten.smooth_l1_loss_backward(grad, x, x * 2, 0, 1.0),
    "softmax": lambda grad, x: aten._softmax_backward_data(grad, x, 1, torch.float32),
    "softplus": lambda grad, x: aten.softplus_backward(grad, x, 1.0, 20.0),
    "threshold": lambda grad, x: aten.threshold_backward(grad, x, 0.0),
}

ORDERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(1, 3),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "every second": lambda x: torch.cat([x, x], -1)[..., ::2],
    "expanded": lambda x: x[:, :1].expand(2, 4, 4, 4),
}


def ramp(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(128).reshape(2, 4, 4, 4) * 0.03 - 1.7).to(device, dtype)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("eagerly", [False, True])
def test_gradients_have_the_strides_of_the_cpu(name: str, order: str, eagerly: bool) -> None:
    for of_grad, of_operand in (("contiguous", order), (order, "contiguous"), (order, order)):
        with eager_mode_context(eagerly):
            found, expected = (
                GRADIENTS[name](ORDERS[of_grad](ramp(device)), ORDERS[of_operand](ramp(device)))
                for device in ("xla", "cpu")
            )
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("order", ["contiguous", "channels last"])
def test_a_gradient_of_group_norm_has_the_order_of_its_input(order: str) -> None:
    """The CPU's kernel takes a gradient in that order alone."""
    found, expected = (
        aten.native_group_norm_backward(
            ORDERS[order](ramp(device).square()), ORDERS[order](ramp(device)), torch.zeros(2, 2, device=device),
            torch.ones(2, 2, device=device), None, 2, 4, 16, 2, [True, False, False],
        )[0]
        for device in ("xla", "cpu")
    )  # fmt: skip
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("op", [aten._softmax_backward_data, aten._log_softmax_backward_data], ids=str)
@pytest.mark.parametrize(
    ("dtype", "input_dtype"),
    [
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
    ids=str,
)
def test_a_gradient_of_softmax_has_the_dtype_of_its_operand(
    op: Callable[..., torch.Tensor], dtype: torch.dtype, input_dtype: torch.dtype
) -> None:
    found, expected = (op(ramp(device, dtype), ramp(device, dtype), 1, input_dtype) for device in ("xla", "cpu"))
    torch.testing.assert_close(found.cpu(), expected)


def test_halves_that_softmax_widened_have_halves_as_gradients() -> None:
    halves = ramp("xla", torch.float16).requires_grad_()
    halves.softmax(1, dtype=torch.float32).square().sum().backward()
    assert halves.grad is not None and halves.grad.dtype is torch.float16
    assert aten._softmax_backward_data(ramp("xla"), ramp("xla"), 1, torch.float16).dtype is torch.float16


def test_a_limit_that_is_no_number_lets_no_gradient_pass() -> None:
    for limits in ((float("nan"), 1.0), (-1.0, float("nan"))):
        found, expected = (aten.hardtanh_backward(ramp(device), ramp(device), *limits) for device in ("xla", "cpu"))
        torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_mask_of_nothing_has_the_dtype_of_the_input(dtype: torch.dtype) -> None:
    for train in (True, False):
        found, expected = (
            torch.native_dropout(torch.ones(0, 2, device=device, dtype=dtype), 0.5, train) for device in ("xla", "cpu")
        )
        assert [each.dtype for each in found] == [each.dtype for each in expected]


def test_a_sum_with_a_number_above_zero_keeps_the_order_of_its_operand() -> None:
    found, expected = (aten._add_relu(ORDERS["transposed"](ramp(device)), 1) for device in ("xla", "cpu"))
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected)
