"""Operators taken whole that PyTorch composes: their gradients are those of the composition."""

from typing import Any

import pytest
import torch

from tests.support.twins import check_same

# Sizes of the input, the weight and the bias.
LINEARS = [
    ((3,), (3,), ()),
    ((3,), (3,), None),
    ((2, 5, 3), (3,), ()),
    ((3,), (4, 3), (4,)),
    ((3,), (4, 3), ()),
    ((2, 3), (4, 3), (1,)),
    ((2, 5, 3), (4, 3), None),
]


@pytest.mark.parametrize("sizes", LINEARS, ids=str)
def test_a_linear_layer_of_any_dimensions_has_its_gradients(sizes: tuple[Any, ...]) -> None:
    def program(d: str) -> Any:
        generator = torch.Generator().manual_seed(0)
        operands = [torch.randn(size, generator=generator).to(d).requires_grad_() for size in sizes if size is not None]
        result = torch.nn.functional.linear(*operands)
        return result.detach(), torch.autograd.grad((result * result.detach()).sum(), operands)

    check_same(program)
