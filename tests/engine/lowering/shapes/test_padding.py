"""Mirrored and repeated margins are those of PyTorch."""

import pytest
import torch

from tests.support.rules import check_rule

aten = torch.ops.aten


@pytest.mark.parametrize("name", ("reflection_pad", "replication_pad"))
@pytest.mark.parametrize("padding", ([1, 2], [2, 0, 1, 1], [1, 1, 0, 2, 1, 0], [-1, 1], [3, -2], [-4, 2]))
def test_padding_and_its_backward(name: str, padding: list[int]) -> None:
    dims = len(padding) // 2
    x = torch.randn(2, 3, *(4, 5, 6)[:dims], generator=torch.Generator().manual_seed(dims))
    forward = getattr(aten, f"{name}{dims}d").default
    backward = getattr(aten, f"{name}{dims}d_backward").default
    check_rule(forward, x, padding)
    gradient = forward(x, padding).cos()
    check_rule(backward, gradient, x, padding)
