"""Attention differentiated twice: it has no second derivative on the CPU, except in its composition."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tests.support.twins import check_same


def values(*size: int, d: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(d)


@pytest.mark.parametrize(("is_causal", "masked"), [(False, False), (True, False), (False, True)])
def test_second_derivatives_are_those_of_the_composition(is_causal: bool, masked: bool) -> None:
    def program(d: str) -> Any:
        query, key, value = (values(2, 3, size, 4, d=d, seed=size).requires_grad_() for size in (5, 7, 7))
        operands = [query, key, value] + ([values(5, 7, d=d).requires_grad_()] if masked else [])
        with sdpa_kernel(SDPBackend.MATH) if d == "cpu" else nullcontext():
            # The key owes something to the query: only its own part of the gradient may be counted.
            dependent = key + query.sum() / 10
            result = scaled_dot_product_attention(query, dependent, *operands[2:], is_causal=is_causal)
        first = torch.autograd.grad((result * result.detach().cos()).sum(), operands, create_graph=True)
        second = torch.autograd.grad(sum((x * x).sum() for x in first), operands)
        return [x.detach() for x in (*first, *second)]

    check_same(program, strides=False, rtol=1e-4, atol=1e-4)


def test_dropout_drops_the_same_in_the_second_derivative() -> None:
    query, key, value = (values(2, 3, size, 4, d="xla", seed=size) for size in (5, 7, 8))
    value = value[..., :7, :]

    def gradient(x: torch.Tensor, create_graph: bool) -> torch.Tensor:
        torch.manual_seed(3)
        result = scaled_dot_product_attention(x, key, value, dropout_p=0.4)
        return torch.autograd.grad(result.sum(), x, create_graph=create_graph)[0]

    def squares(x: torch.Tensor) -> torch.Tensor:
        return gradient(x.detach().requires_grad_(), False).square().sum()

    x = query.requires_grad_()
    first = gradient(x, True)
    torch.testing.assert_close(first, gradient(x, False))
    second = torch.autograd.grad(first.square().sum(), x)[0]
    step = values(*query.shape, d="xla", seed=1)
    numerical = (squares(x + 1e-2 * step) - squares(x - 1e-2 * step)) / 2e-2
    torch.testing.assert_close(numerical, (second * step).sum(), rtol=1e-2, atol=1e-3)
