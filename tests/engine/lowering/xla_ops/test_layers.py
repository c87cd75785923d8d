"""Layers as operators: on the CPU as on the device, with gradients of PyTorch's own layers."""

import pytest
import torch
import torch.nn.functional as F

xla = torch.ops.xla


def gradients(result: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    weights = torch.arange(1.0, result.numel() + 1).reshape(result.shape).to(result)
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), inputs)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("size", [(4,), (3, 4), (2, 3, 4)], ids=str)
def test_linear(size: tuple[int, ...], biased: bool, dtype: torch.dtype) -> None:
    x, weight = torch.randn(size).to(dtype).requires_grad_(), torch.randn(5, 4).to(dtype).requires_grad_()
    bias = torch.randn(5).to(dtype).requires_grad_() if biased else None
    inputs = [each for each in (x, weight, bias) if each is not None]
    ours = gradients(xla.einsum_linear_forward(x, weight, bias), *inputs)
    theirs = gradients(F.linear(x, weight, bias), *inputs)
    torch.testing.assert_close(ours, theirs, **({"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}))


def test_gradients_that_are_not_needed_are_zero() -> None:
    grad, x, weight, bias = torch.ones(3, 5), torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    found = xla.einsum_linear_backward(grad, x, weight, bias, False, True, False)
    assert not found[0].any() and not found[2].any()
    torch.testing.assert_close(found[1], grad.t() @ x)
    assert [each.shape for each in found] == [(3, 4), (5, 4), (5,)]
    assert xla.einsum_linear_forward(torch.tensor([[2, 3]]), torch.tensor([[4, 5]]), None).tolist() == [[23]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [((2, 2),), ((3, 2), (1, 2), (1, 0)), ((2, 2), (2, 2), (0, 0), (1, 1), True)], ids=str
)
def test_pooling(settings: tuple) -> None:  # type: ignore[type-arg]
    x = torch.randn(2, 3, 7, 6).requires_grad_()
    ours = gradients(xla.max_pool2d_forward(x, *settings), x)
    torch.testing.assert_close(ours, gradients(F.max_pool2d(x, *settings), x))


def test_a_dilated_pool_has_no_gradient_and_says_so() -> None:
    x = torch.randn(1, 1, 6, 6).requires_grad_()
    found = xla.max_pool2d_forward(x, [2, 2], [1, 1], [0, 0], [2, 2])
    torch.testing.assert_close(found, F.max_pool2d(x, 2, 1, 0, 2))
    with pytest.raises(NotImplementedError, match="has no dilation; use torch.nn.functional.max_pool2d"):
        found.sum().backward()
