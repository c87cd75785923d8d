"""Draws that are composed of products and sums have the same bits wherever a program is cut."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import distributions

import torch_xla
from tests.support.ways_to_run import WAYS, made_to_run
from torch_xla._engine.compile.rewrite_barriers import keep_arithmetic

N = 1037
Draw = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Of a location and a scale.
DRAWS: dict[str, Draw] = {
    "Normal": lambda m, s: distributions.Normal(m, s, validate_args=False).rsample(),
    "LogNormal": lambda m, s: distributions.LogNormal(m, s, validate_args=False).rsample(),
    "Laplace": lambda m, s: distributions.Laplace(m, s, validate_args=False).rsample(),
    "Cauchy": lambda m, s: distributions.Cauchy(m, s, validate_args=False).rsample(),
    "Gumbel": lambda m, s: distributions.Gumbel(m, s, validate_args=False).rsample(),
    "StudentT": lambda m, s: distributions.StudentT(s, m, s, validate_args=False).rsample(),
    "Uniform": lambda m, s: distributions.Uniform(m, m + s, validate_args=False).rsample(),
    "noise of a known scale": lambda m, s: m + torch.randn_like(m) * 0.3,
    "uniform noise of a known scale": lambda m, s: torch.rand_like(m) * 0.3 + m,
    "noise that is taken off": lambda m, s: m - torch.randn_like(m) * s,
    "a location that is taken off": lambda m, s: torch.randn_like(m) * s - m,
    "the negative of noise": lambda m, s: m + -(torch.randn_like(m) * s),
    "a residual connection": lambda m, s: m + torch.nn.functional.dropout(s, 0.3),
}


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    location, scale = torch.randn(N, generator=draw), torch.rand(N, generator=draw) + 0.1
    return location.to(dtype).to("xla"), scale.to(dtype).to("xla")


def drawn(way: str, draw: Draw, dtype: torch.dtype) -> torch.Tensor:
    location, scale = operands(dtype)
    with made_to_run(way, draw) as function:
        for _ in range(4 if way == "replay" else 1):
            torch.manual_seed(3)
            result = function(location, scale)
            torch_xla.sync()
        return result.cpu()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_has_the_same_bits_in_every_way_of_running(name: str, dtype: torch.dtype) -> None:
    by_operation, *others = (drawn(way, DRAWS[name], dtype) for way in ("eager", *(w for w in WAYS if w != "eager")))
    for other in others:
        assert torch.equal(by_operation, other)


def rounded_products(function: Callable[[jax.Array, jax.Array], jax.Array]) -> int:
    """How many products are rounded before they are added, of a function of a key and data."""
    with jax.enable_x64(True):
        key = jax.random.key_data(jax.random.key(0, impl="rbg"))
        module = jax.jit(function).lower(key, jnp.ones(8, jnp.float32)).compiler_ir("stablehlo")
    before = str(module).count("stablehlo.select")
    keep_arithmetic(module)
    return str(module).count("stablehlo.select") - before


def noise(key: jax.Array) -> jax.Array:
    bits = jax.lax.rng_bit_generator(key, (8,), jnp.uint32)[1]
    return jnp.log((bits >> 8).astype(jnp.float32))


def test_products_of_draws_alone_are_rounded() -> None:
    assert rounded_products(lambda key, x: x + x * noise(key)) == 1
    assert rounded_products(lambda key, x: x - x * (1.0 - noise(key))) == 1, "one number is added to the draw"
    assert rounded_products(lambda key, x: x + x * x) == 0, "nothing is drawn"
    assert rounded_products(lambda key, x: noise(key) + x * x) == 0, "the draw is no factor"
    assert rounded_products(lambda key, x: x + x * jnp.sum(noise(key))) == 0, "data computed of draws"
    assert rounded_products(lambda key, x: x + x * (noise(key) + x + jnp.cos(x))) == 0, "data with noise"


def test_draws_are_found_in_loops_and_in_functions() -> None:
    def by_rejection(key: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.any(x > 3), lambda x: noise(key), jnp.full(8, 4.0, jnp.float32))

    assert rounded_products(lambda key, x: x + x * by_rejection(key)) == 1
    assert rounded_products(lambda key, x: x + x * jax.jit(noise)(key)) == 1
