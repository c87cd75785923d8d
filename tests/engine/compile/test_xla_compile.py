"""Programs that XLA is to compile in another way, or after an edit."""

from collections.abc import Callable

import jax
import pytest
import torch

import torch_xla.debug.metrics as met

on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="what XLA:CPU does with bfloat16")


def numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(torch.bfloat16)


def attention(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query.mT, key, key)


def behind_one(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left.mT.unsqueeze(1) @ right.unsqueeze(1)


@on_cpu
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (attention, ((3, 5, 16, 2), (3, 5, 4, 16))),
        (attention, ((1, 1, 16, 2), (1, 1, 4, 16))),
        (behind_one, ((6, 16, 4), (6, 16, 8))),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_what_is_transposed_behind_a_dimension_of_one_element_runs(
    function: Callable[..., torch.Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    operands = [numbers(*shape) for shape in shapes]
    expected = function(*(each.double() for each in operands))
    for run in (function, torch.compile(function, backend="openxla")):
        found = run(*(each.to("xla") for each in operands))
        torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-2, atol=2e-2)


@on_cpu
def test_programs_without_such_products_are_compiled_once() -> None:
    before = met.counter_value("BFloat16ProductsWidened")
    left, right = numbers(64, 32), numbers(48, 32)
    found = (left.to("xla") @ right.to("xla").t()).cpu()
    torch.testing.assert_close(found.double(), left.double() @ right.double().t(), rtol=1e-2, atol=2e-2)
    assert met.counter_value("BFloat16ProductsWidened") == before
