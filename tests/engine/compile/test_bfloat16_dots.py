"""Products of bfloat16 that XLA:CPU has no kernel for."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch

import torch_xla.debug.metrics as met
from torch_xla._engine.compile import bfloat16_dots

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="what XLA:CPU does with bfloat16")


def numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(torch.bfloat16)


def attention(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query.mT, key, key)


def behind_one(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left.mT.unsqueeze(1) @ right.unsqueeze(1)


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


def test_programs_without_such_products_are_compiled_once() -> None:
    before = met.counter_value("BFloat16ProductsWidened")
    left, right = numbers(64, 32), numbers(48, 32)
    found = (left.to("xla") @ right.to("xla").t()).cpu()
    torch.testing.assert_close(found.double(), left.double() @ right.double().t(), rtol=1e-2, atol=2e-2)
    assert met.counter_value("BFloat16ProductsWidened") == before


def test_products_are_found_in_what_xla_made_of_a_program() -> None:
    def product(left: jax.Array, right: jax.Array) -> jax.Array:
        left = jnp.swapaxes(left, 1, 2)[:, None]
        return jax.lax.dot_general(left, right, (((3,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32)

    def looped(left: jax.Array, right: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, total: total + product(left, right), jnp.zeros((5, 1, 4, 3)))

    for function in (product, looped):
        left, right = jnp.ones((5, 16, 4), jnp.bfloat16), jnp.ones((5, 3, 16), jnp.bfloat16)
        executable = jax.jit(function).lower(left, right).compile()
        found = bfloat16_dots.not_run(executable.as_text())
        if not found:
            pytest.skip("this processor has no instructions for bfloat16, and XLA widens all of it")
        assert len(found) == 1
        with pytest.raises(jax.errors.JaxRuntimeError, match="Unsupported element type"):
            jax.block_until_ready(executable(left, right))
