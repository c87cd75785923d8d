"""Recurrent cells and their gradients, against PyTorch's cells on the CPU."""

import pytest
import torch
from torch import Tensor

from tests.support.rules import apply_rule

aten = torch.ops.aten
SAMPLES, HIDDEN = 3, 4


def gates(count: int, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Gates that come multiplied out, and the weights with which PyTorch's cell gets the same."""
    own = [torch.randn(SAMPLES, count * HIDDEN).to(dtype) for _ in range(2)]
    biases = [torch.randn(count * HIDDEN).to(dtype) for _ in range(2)]
    return own, biases


def split(gates: Tensor, count: int) -> tuple[Tensor, ...]:
    return gates.chunk(count, 1)


def lstm(given: Tensor, hidden: Tensor, cx: Tensor) -> tuple[Tensor, Tensor]:
    enter, forget, cell, out = split(given + hidden, 4)
    cy = forget.sigmoid() * cx + enter.sigmoid() * cell.tanh()
    return out.sigmoid() * cy.tanh(), cy


def gru(given: Tensor, hidden: Tensor, hx: Tensor) -> Tensor:
    reset, update, new = split(given, 3)
    reset_h, update_h, new_h = split(hidden, 3)
    update, candidate = (update + update_h).sigmoid(), (new + (reset + reset_h).sigmoid() * new_h).tanh()
    return candidate + update * (hx - candidate)


@pytest.mark.parametrize("biased", [False, True])
def test_an_lstm_cell(biased: bool) -> None:
    (given, hidden), biases = gates(4, torch.float64)
    biases = biases if biased else [None, None]  # type: ignore[list-item]
    cx = torch.randn(SAMPLES, HIDDEN, dtype=torch.float64)
    whole = [gate if bias is None else gate + bias for gate, bias in zip((given, hidden), biases, strict=True)]
    leaves = [each.clone().requires_grad_() for each in (*whole, cx)]
    hy, cy = lstm(*leaves)
    found = apply_rule(aten._thnn_fused_lstm_cell.default, given, hidden, cx, *biases)
    torch.testing.assert_close(list(found[:2]), [hy.detach(), cy.detach()])
    grad_hy, grad_cy = torch.randn_like(hy), torch.randn_like(cy)
    by_gates, _, by_cx = torch.autograd.grad((hy, cy), leaves, (grad_hy, grad_cy))
    back = aten._thnn_fused_lstm_cell_backward_impl.default
    ours = apply_rule(back, grad_hy, grad_cy, cx, cy.detach(), found[2], biased)
    torch.testing.assert_close(list(ours[:2]), [by_gates, by_cx])
    assert (ours[2] is not None) is biased
    if biased:
        torch.testing.assert_close(ours[2], by_gates.sum(0))
    hy, cy = lstm(*leaves)
    alone = torch.autograd.grad(cy, leaves[::2], grad_cy)
    ours = apply_rule(back, None, grad_cy, cx, cy.detach(), found[2], False)
    torch.testing.assert_close(list(ours[:2]), list(alone))


@pytest.mark.parametrize("biased", [False, True])
def test_a_gru_cell(biased: bool) -> None:
    (given, hidden), biases = gates(3, torch.float64)
    biases = biases if biased else [None, None]  # type: ignore[list-item]
    hx = torch.randn(SAMPLES, HIDDEN, dtype=torch.float64)
    whole = [gate if bias is None else gate + bias for gate, bias in zip((given, hidden), biases, strict=True)]
    leaves = [each.clone().requires_grad_() for each in (*whole, hx)]
    hy = gru(*leaves)
    found = apply_rule(aten._thnn_fused_gru_cell.default, given, hidden, hx, *biases)
    torch.testing.assert_close(found[0], hy.detach())
    grad = torch.randn_like(hy)
    expected = torch.autograd.grad(hy, leaves, grad)
    ours = apply_rule(aten._thnn_fused_gru_cell_backward.default, grad, found[1], biased)
    torch.testing.assert_close(list(ours[:3]), list(expected))
    if biased:
        torch.testing.assert_close(list(ours[3:]), [each.sum(0) for each in expected[:2]])
    else:
        assert ours[3] is ours[4] is None


def test_the_cell_of_pytorch_is_the_same() -> None:
    cell = torch.nn.LSTMCell(5, HIDDEN)
    x, hx, cx = torch.randn(SAMPLES, 5), torch.randn(SAMPLES, HIDDEN), torch.randn(SAMPLES, HIDDEN)
    with torch.no_grad():
        expected = cell(x, (hx, cx))
        biases = cell.bias_ih.detach(), cell.bias_hh.detach()
        given, hidden = x @ cell.weight_ih.t(), hx @ cell.weight_hh.t()
    found = apply_rule(aten._thnn_fused_lstm_cell.default, given, hidden, cx, *biases)
    torch.testing.assert_close(list(found[:2]), list(expected))


def test_narrow_gates_are_computed_wide_and_saturated_ones_have_no_gradient() -> None:
    (given, hidden), _ = gates(3, torch.float16)
    hx = torch.randn(SAMPLES, HIDDEN).half()
    narrow = apply_rule(aten._thnn_fused_gru_cell.default, given, hidden, hx)[0]
    wide = gru(given.double(), hidden.double(), hx.double())
    assert narrow.dtype == torch.float16
    torch.testing.assert_close(narrow.double(), wide, rtol=2e-3, atol=2e-3)
    large = torch.full((1, 3 * HIDDEN), 1e4)
    found = apply_rule(aten._thnn_fused_gru_cell.default, large, large, torch.ones(1, HIDDEN))
    grads = apply_rule(aten._thnn_fused_gru_cell_backward.default, torch.ones(1, HIDDEN), found[1], False)
    assert all(torch.isfinite(each).all() for each in grads[:3])
