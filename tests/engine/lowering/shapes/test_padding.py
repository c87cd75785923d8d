"""Mirrored and repeated margins are those of PyTorch."""

import pytest
import torch

from tests.support.rules import check_rule
from tests.support.signed_zeros import check_signs
from tests.support.ways_to_run import WAYS

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


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_added_to_zeros(way: str) -> None:
    def function(x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
        return [
            getattr(aten, f"{name}{dims}d_backward")(of_result, of_x, [1, 0] + [0, 0] * (dims - 1))
            for name in ("reflection_pad", "replication_pad")
            for dims, of_result, of_x in ((1, grad[0], x[0]), (2, grad, x), (3, grad, x))
        ]

    x = torch.ones(2, 3, 3, 3)
    check_signs(way, function, x, torch.tensor([-0.0, 0.0, -0.0, -0.0]).expand(2, 3, 3, 4))
