"""Affine quantisation is PyTorch's, number by number."""

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # noqa: F401  defines the operators

from tests.support.rules import apply_rule

decomposed = torch.ops.quantized_decomposed
X = torch.tensor([[0.0, -0.013, 0.5, 100.0], [-100.0, 0.0249, 0.025, -3.3], [1e-7, 0.031, -0.031, 2.5]])
PER_ROW = torch.tensor([0.02, 0.1, 0.005]), torch.tensor([0, 3, -5])
TOKENS = torch.tensor([[0.02], [0.1], [0.005]]), torch.tensor([[0], [3], [-5]])
GROUPS = torch.tensor([[0.02, 0.5], [0.1, 0.3], [0.005, 1.0]]), torch.tensor([[0, 1], [3, -2], [-5, 0]])
INT8 = (-128, 127, torch.int8)

THERE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "one scale": (decomposed.quantize_per_tensor.default, (0.02, 3, *INT8)),
    "of a tensor": (decomposed.quantize_per_tensor.tensor, (torch.tensor([0.02]), torch.tensor([3]), *INT8)),
    "uint8": (decomposed.quantize_per_tensor.default, (0.05, 128, 0, 255, torch.uint8)),
    "rows": (decomposed.quantize_per_channel.default, (*PER_ROW, 0, *INT8)),
    "the last dimension": (decomposed.quantize_per_channel.default, (torch.rand(4) + 0.1, torch.arange(4), -1, *INT8)),
    "tokens": (decomposed.quantize_per_token.default, (*TOKENS, *INT8)),
    "groups": (decomposed.quantize_per_channel_group.default, (*GROUPS, -8, 7, torch.int8, 2)),
}
NUMBERS = torch.tensor([[-128, 127, 0, 3], [1, -1, 100, -100], [5, 6, 7, -8]], dtype=torch.int8)
BACK: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "one scale": (decomposed.dequantize_per_tensor.default, (0.02, 3, *INT8), {}),
    "to half": (decomposed.dequantize_per_tensor.default, (0.02, 3, *INT8), {"out_dtype": torch.float16}),
    "of a tensor": (decomposed.dequantize_per_tensor.tensor, (torch.tensor([0.02]), torch.tensor([3]), *INT8), {}),
    "rows": (decomposed.dequantize_per_channel.default, (*PER_ROW, 0, *INT8), {}),
    "rows without a zero point": (decomposed.dequantize_per_channel.default, (PER_ROW[0], None, 0, *INT8), {}),
    "tokens": (decomposed.dequantize_per_token.default, (*TOKENS, *INT8, torch.float32), {}),
    "groups": (decomposed.dequantize_per_channel_group.default, (*GROUPS, -8, 7, torch.int8, 2, torch.float32), {}),
}


@pytest.mark.parametrize("name", THERE)
def test_rounding(name: str) -> None:
    op, settings = THERE[name]
    expected = op(X, *settings)
    found = apply_rule(op, X, *settings)
    assert found.dtype == expected.dtype and found.tolist() == expected.tolist()


@pytest.mark.parametrize("name", BACK)
def test_back(name: str) -> None:
    op, settings, named = BACK[name]
    expected = op(NUMBERS, *settings, **named)
    found = apply_rule(op, NUMBERS, *settings, **named)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


def test_what_lies_on_the_grid_comes_back() -> None:
    settings = (0.25, -7, *INT8)
    grid = torch.arange(-100, 100) * 0.25
    there = apply_rule(decomposed.quantize_per_tensor.default, grid, *settings)
    assert torch.equal(apply_rule(decomposed.dequantize_per_tensor.default, there, *settings), grid)
