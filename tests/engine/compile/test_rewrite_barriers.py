"""Compiled programs overflow, underflow and keep signs as the operations they are made of do."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
import torch

import torch_xla
from benchmarks import models
from torch_xla._engine.compile import xla_compile
from torch_xla._engine.compile.rewrite_barriers import keep_arithmetic
from torch_xla.experimental import eager_mode

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="GPUs and TPUs keep XLA's rewrites")

Function = Callable[[torch.Tensor], torch.Tensor]

# Functions of three numbers, none negative, that XLA takes out of programs.
REMOVED: dict[str, Function] = {
    "negative of a negative": lambda x: x.neg().neg(),
    "x * 1": lambda x: x * 1,
    "x - 0": lambda x: x - 0,
    "maximum of equals": lambda x: torch.maximum(x, x),
    "maximum of one": lambda x: x[:, None].amax(1),
    "element of a stack": lambda x: torch.stack([x, x])[1],
    "part of padded": lambda x: torch.nn.functional.pad(x, (1, 1))[1:4],
    "flip of flip": lambda x: x.flip(0).flip(0),
    "square of a root": lambda x: x.sqrt() ** 2,
}

OVERFLOWS: dict[str, tuple[Function, list[float]]] = {
    "log of exp": (lambda x: x.exp().log(), [1000.0, -1000.0, 1.0]),
    "log of pow": (lambda x: torch.pow(x, 3.7).log(), [1e30, 1e-30, 1e5, -1.0]),
    "exp by exp": (lambda x: x.exp() / (x - 1).exp(), [1000.0, -1000.0, 1.0]),
    "exp times exp": (lambda x: x.exp() * (-x).exp(), [1000.0, -1000.0, 1.0]),
    "pow of exp": (lambda x: torch.pow(x.exp(), x * 0 + 0.01), [1000.0, -1000.0, 1.0]),
    "root of a product": (lambda x: (x * x).sqrt(), [1e30, -1e30, 1e-30, 2.0]),
    "root of a power": (lambda x: (x**2).sqrt(), [1e30, -1e30, 1e-30, 2.0]),
    "two sums": (lambda x: (x + 3e38) - 3e38, [3e38, 1.0, -3e38]),
    "two products": (lambda x: (x * 1e38) * 1e-30, [3e38, 1.0, 1e2]),
    "product with a subnormal number": (lambda x: (x * 1e38) * 1e-38, [1000.0, 5.0, -3.0, math.inf]),
    "quotient by a subnormal number": (lambda x: x / 1e-40, [1000.0, 1e-10, 0.0, math.inf]),
    "quotient of a subnormal number": (lambda x: 1e-40 / x, [1e-30, -1e-20, 0.0, math.inf]),
    "quotient by the inverse of a root": (lambda x: x / (x * x).rsqrt(), [1e30, -1e30, 1e-15, 2.0]),
    "inverse root of a negative power": (lambda x: (x**-2).rsqrt(), [1e30, -1e30, 1e-15, 2.0]),
    "inverse root of an inverse": (lambda x: (x * x).reciprocal().rsqrt(), [1e30, -1e30, 1e-15, 2.0]),
    "negative powers one after the other": (lambda x: (x**-2) ** -0.5, [1e30, -1e30, 1e-15, 2.0]),
    "inverse of the inverse of a root": (lambda x: 1 / (x * x).rsqrt(), [1e30, -1e30, 1e-15, 2.0]),
    "product and quotient": (lambda x: (x * 1e38) / 0.5, [3e38, 0.0, 1.0]),
    "two quotients by numbers": (lambda x: x / 1e30 / 1e30 * 1e30, [3e38, 1.0, 1e35]),
    "two quotients": (lambda x: x / (x * 2) / x, [3e37, 1.0, 1e35, 1e-30]),
    "quotient by a quotient": (lambda x: x / (x / (x * 2)), [1e38, 1.0, 1e35, 1e-30]),
    "quotient by a great number": (lambda x: x / 3e38, [3e38, 1e35]),
    "quotient by a great scalar": (lambda x: x / x[0], [3e38, 1e35]),
    "products of equal factors": (lambda x: x * 0.5 + x.flip(0) * 0.5, [3e38, 3e38]),
    "product with a mask": (lambda x: x * (x < 5), [math.inf, -1.0, 6.0, math.nan, -0.5]),
    "mean of equal values": (lambda x: x.expand(4, 2).mean(0), [3e38, 1.0]),
    "product of one term for each element": (
        lambda x: (x[:, None] * 1e30) @ torch.full((1, 2), 1e-30, device=x.device), [1e20, 3e38, 1.0]
    ),
    "product of vectors of exp": (lambda x: x.exp() @ (-x).exp(), [1000.0, -1000.0, 1.0]),
    "product of a row and a column of exp": (lambda x: x.exp()[None] @ (-x).exp()[:, None], [1000.0, 1.0, 2.0]),
    "product over exp": (lambda x: x.exp().prod(), [1000.0, -1000.0, 1.0]),
    "product over exp of rows": (lambda x: x.view(2, 2).exp().prod(1), [1000.0, -1000.0, 1.0, 2.0]),
    "product over exp turned": (lambda x: x.exp().flip(0).prod(), [1000.0, -1000.0, 1.0]),
    "product over powers of two": (lambda x: torch.exp2(x).prod(), [1000.0, -1000.0, 1.0]),
    "product over pow": (lambda x: torch.pow(x, 1.7).prod(), [3e38, 3e38, 0.0, 1.0]),
    "product over products": (lambda x: (x * 1e20).view(2, 2).prod(1), [1e30, 1e30, 0.0, 1e-20]),
    "product over quotients": (lambda x: (1e30 / x).view(2, 2).prod(0), [5e37, 2e-38, 5e37, 5e37]),
    "product over a choice by a number": (
        lambda x: torch.where(x[0] > 0, x * x, x * 3).view(2, 2).prod(0),
        [1e30, 1e20, 1e-30, 1.0],
    ),
    "sum of sums": (lambda x: x.view(2, 2).sum(1).sum(), [3e38, 3e38, -3e38, -3e38]),
    "magnitude not less than 0": (lambda x: x.abs() >= 0, [math.nan, -1.0]),
    "square not less than 0": (lambda x: x * x >= 0, [math.nan, -1.0]),
}  # fmt: skip


def _computed_minus_zeros(x: torch.Tensor) -> list[torch.Tensor]:
    """Each as long as `x`, of numbers that are known when a program is compiled."""
    zeros = torch.full_like(x, -0.0)
    halves = torch.cat([zeros[:1], zeros[1:]])
    return [zeros.flip(0), -torch.zeros_like(x), zeros.sqrt(), zeros.roll(1), halves, zeros.nan_to_num(), zeros.tanh()]


def _zeros_found_by_xla(x: torch.Tensor) -> list[torch.Tensor]:
    """Zeros that XLA finds although they are computed of `x` or of places: by rules of integers, slices and sizes."""
    n, zeros = (x > 0).long() + torch.arange(len(x), device=x.device), torch.zeros_like(x)
    integers = [n * 0, n - n, n & 0, n ^ n, n != n, (n * 0).float() * 2, (n * 0).cumsum(0), n[:0].sum()]
    joined = torch.cat([zeros, x]), torch.stack([zeros, x]), torch.nn.functional.pad(x, (len(x), 0))
    parts = [joined[0][: len(x)], joined[1][0], joined[2][: len(x)], x[:0].sum()]
    places = [torch.arange(1, device=x.device), x[:1].argmax(), torch.where(n == n, zeros, x), zeros.argmax()]
    places += [x[:1].topk(1)[1], x[:1].median(0)[1], (zeros + 1).argmin(), torch.searchsorted(zeros[:1], zeros[:1])]
    return [*integers, *parts, *places, x.masked_fill(torch.ones_like(n, dtype=torch.bool), 0.0)]


ZEROS: dict[str, Function] = {
    "x + 0.0": lambda x: x + 0.0,
    "x + 0": lambda x: x + 0,
    "0.0 + x": lambda x: 0.0 + x,
    "x - 0.0": lambda x: x - 0.0,
    "x - -0.0": lambda x: x - (-0.0),
    "0.0 - x": lambda x: 0.0 - x,
    "a scalar + 0.0": lambda x: x[0] + 0.0,
    "x + zeros": lambda x: x + torch.zeros_like(x),
    "zeros + x": lambda x: torch.zeros_like(x) + x,
    "x.add_(0.0)": lambda x: x.clone().add_(0.0),
    "sum of one": lambda x: x[:, None].sum(1),
    "sum of one to a scalar": lambda x: x[:1].sum(),
    "mean of one": lambda x: x[:, None].mean(1),
    "product of one": lambda x: x[:, None].prod(1),
    "product over products": lambda x: (x[:, None].expand(2, 3) * 2).prod(1),
    "sum of negatives": lambda x: (-x.abs()[:, None].expand(2, 2)).sum(1),
    "negatives of a sum": lambda x: -(x.abs()[:, None].expand(2, 2)).sum(1),
    "sum of equal values": lambda x: x.expand(5, 2).sum(0),
    "cumsum": lambda x: x.cumsum(0),
    "cumsum of one": lambda x: x[:, None].cumsum(1),
    "row by a matrix": lambda x: -x.abs().repeat(3) @ torch.ones(6, 9, dtype=x.dtype, device=x.device),
    "rows by matrices": lambda x: -x.abs().expand(2, 1, 2) @ x.abs().add(1).view(2, 1).expand(2, 2, 17),
    "cumsum of a number": lambda x: torch.full_like(x, -0.0).cumsum(0),
    "cumsum of a computed number": lambda x: (torch.ones_like(x) * -0.0).cumsum(0),
    "sums of numbers that XLA computes": lambda x: torch.cat(
        [each.cumsum(0) for each in _computed_minus_zeros(x)] + [each.sum()[None] for each in _computed_minus_zeros(x)]
    ),
    "x + zeros that XLA computes": lambda x: torch.cat([x - each for each in _computed_minus_zeros(x)]),
    "x + zeros that XLA finds": lambda x: torch.cat([x + each for each in _zeros_found_by_xla(x)]),
    "complex x + zeros that XLA finds": lambda x: torch.view_as_real(
        torch.cat([torch.complex(x.float(), x.float()) + each for each in _zeros_found_by_xla(x)])
    ),
    "a number added to zeros that XLA computes": lambda x: torch.cat(
        [
            torch.tanh(torch.zeros_like(x) * 1).index_add(0, torch.zeros_like(x[:1], dtype=torch.int64), each)
            for each in (x[:1], x[1:])
        ]
    ),
    "average of windows of a computed number": lambda x: torch.nn.functional.avg_pool1d(
        (torch.ones_like(x) * -0.0)[None, None], 2, 1
    ),
    "-0.0 - a computed number": lambda x: -0.0 - torch.full_like(x, -0.0) * 1,
    "-0.0 + a computed number": lambda x: torch.full_like(x, -0.0) + torch.full_like(x, 0.0) * 1,
    "x + a computed number": lambda x: x + torch.ones_like(x) * 0.0,
    "x - a computed number": lambda x: x - torch.ones_like(x) * -0.0,
    "a negative zero put into negative zeros": lambda x: torch.full_like(x, -0.0).index_put(
        (torch.zeros_like(x[:1], dtype=torch.int64),), x[:1] * 1, accumulate=True
    ),
    "a zero put into negative zeros": lambda x: torch.full_like(x, -0.0).index_put(
        (torch.zeros_like(x[:1], dtype=torch.int64),), x[1:] * 1, accumulate=True
    ),
    "one row put into zeros": lambda x: torch.zeros(2, 2, dtype=x.dtype, device=x.device).index_put(
        (torch.zeros_like(x[:1], dtype=torch.int64),), x[None], accumulate=True
    ),
    "one row added to negative zeros": lambda x: (
        torch.full_like(x, -0.0).expand(2, 2).index_add(0, torch.zeros_like(x[:1], dtype=torch.int64), x[None])
    ),
    "depthwise convolution": lambda x: torch.nn.functional.conv1d(
        -x.abs().repeat(4).view(1, 2, 4), torch.ones(2, 1, 3, dtype=x.dtype, device=x.device), groups=2
    ),
    "average of windows of one": lambda x: torch.nn.functional.avg_pool1d(x[None, None], 1),
    "one number added to zeros": lambda x: torch.zeros_like(x).index_add(
        0, torch.zeros_like(x[:1], dtype=torch.int64), x[:1]
    ),
    "one number scattered into zeros": lambda x: torch.zeros_like(x).scatter_add(
        0, torch.zeros_like(x[:1], dtype=torch.int64), x[:1]
    ),
    "relu": lambda x: x.relu(),
    "relu6": torch.nn.functional.relu6,
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, 0, 1),
    "hardtanh to -0.0": lambda x: torch.nn.functional.hardtanh(x, -1, -0.0),
    "clamp from 0.0": lambda x: x.clamp(min=0.0),
    "clamp from -0.0": lambda x: x.clamp(min=-0.0),
    "clamp to 0.0": lambda x: x.clamp(max=0.0),
    "clamp to -0.0": lambda x: x.clamp(max=-0.0),
    "clamp": lambda x: x.clamp(0.0, 1.0),
}


def recorded(function: Function, operand: torch.Tensor) -> torch.Tensor:
    return function(operand)


def recorded_again(function: Function, operand: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        function(operand)
        torch_xla.sync()
    return function(operand)


def eager(function: Function, operand: torch.Tensor) -> torch.Tensor:
    eager_mode(True)
    try:
        return function(operand)
    finally:
        eager_mode(False)


def replayed(function: Function, operand: torch.Tensor) -> torch.Tensor:
    compiled = torch_xla.compile(function, replay=True)
    for _ in range(2):
        compiled(operand)
    return compiled(operand)


def in_a_graph(function: Function, operand: torch.Tensor) -> torch.Tensor:
    torch._dynamo.reset()
    return torch.compile(function, backend="openxla")(operand)


WAYS = [recorded, recorded_again, eager, replayed, in_a_graph]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OVERFLOWS)
def test_an_overflow_stays(way: Callable[[Function, torch.Tensor], torch.Tensor], name: str) -> None:
    function, values = OVERFLOWS[name]
    operand = torch.tensor(values)
    torch.testing.assert_close(way(function, operand.to("xla")).cpu(), function(operand), equal_nan=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REMOVED)
def test_exponentials_stay_apart_from_readers_behind_what_xla_removes(
    way: Callable[[Function, torch.Tensor], torch.Tensor], name: str
) -> None:
    remove = REMOVED[name]

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([remove(x.exp()).log(), x.exp() / remove((x - 1).exp()), remove(x.exp()) * (-x).exp()])

    operand = torch.tensor([1000.0, 1.0, 2.0])
    torch.testing.assert_close(way(function, operand.to("xla")).cpu(), function(operand), equal_nan=True)


QUOTIENTS: dict[str, Function] = {
    "by a number": lambda x: x / 3.3,
    "by a scalar": lambda x: x / (x[0] * 1.1),
    "by one element": lambda x: x / x[1:2],
    "twice": lambda x: x / 3.3 / 0.7,
    "of what is added": lambda x: (x + 1) / 7 + 2,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", QUOTIENTS)
def test_a_quotient_is_rounded_once(way: Callable[[Function, torch.Tensor], torch.Tensor], name: str) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        operand = torch.randn(500, generator=torch.Generator().manual_seed(1)).to(dtype)
        operand[2:6] = torch.tensor([math.nan, math.inf, -0.0, 0.0])
        expected = QUOTIENTS[name](operand)
        torch.testing.assert_close(
            way(QUOTIENTS[name], operand.to("xla")).cpu(), expected, rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("way", WAYS)
def test_an_overflow_stays_where_the_exponent_becomes_an_argument(
    way: Callable[[Function, torch.Tensor], torch.Tensor],
) -> None:
    operand = torch.tensor([1e30, 1e20, 1e-30, 1.0])
    for exponent in (2, 4, 2, 3):

        def function(x: torch.Tensor, exponent: int = exponent) -> torch.Tensor:
            return torch.pow(x, exponent).view(2, 2).prod(0)

        torch.testing.assert_close(way(function, operand.to("xla")).cpu(), function(operand), equal_nan=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ZEROS)
def test_the_sign_of_zero_is_that_of_the_cpu(way: Callable[[Function, torch.Tensor], torch.Tensor], name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        operand = torch.tensor([-0.0, 0.0], dtype=dtype)
        made, expected = way(ZEROS[name], operand.to("xla")).cpu(), ZEROS[name](operand)
        assert torch.equal(made, expected)
        assert made.signbit().tolist() == expected.signbit().tolist(), f"{name} of {dtype}"


COMPLEX: dict[str, Function] = {
    "sum of one": lambda x: x[:, None].sum(1),
    "mean of one": lambda x: x[:, None].mean(1),
    "sum of one to a scalar": lambda x: x[:1].sum(),
    "cumsum of one": ZEROS["cumsum of one"],
    "x + 0": ZEROS["x + 0"],
    "0 + x": lambda x: 0 + x,
    "x + 0j": lambda x: x + 0j,
    "x + zeros": ZEROS["x + zeros"],
    "x + twice zeros": lambda x: torch.add(x, torch.zeros_like(x), alpha=2),
    "x + real zeros": lambda x: x + torch.zeros(x.shape, device=x.device),
    "x.add_(0)": lambda x: x.clone().add_(0),
    "x - 0": lambda x: x - 0,
    "x - -0.0": ZEROS["x - -0.0"],
    "0 - x": lambda x: 0 - x,
    "x * 1": lambda x: x * 1,
    "1 * x": lambda x: 1 * x,
    "x * ones that XLA computes": lambda x: x * torch.ones_like(x).cumprod(0),
    "x * ones that XLA joins": lambda x: torch.cat([torch.ones_like(x), torch.ones_like(x)])[: len(x)] * x,
    "one number added to zeros": ZEROS["one number added to zeros"],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", COMPLEX)
def test_zeros_of_complex_numbers_have_the_signs_of_the_cpu(
    way: Callable[[Function, torch.Tensor], torch.Tensor], name: str
) -> None:
    zeros = torch.tensor([-0.0, 0.0])
    operand = torch.complex(zeros.repeat(2), zeros.repeat_interleave(2))
    made, expected = (
        torch.view_as_real(each) for each in (way(COMPLEX[name], operand.to("xla")).cpu(), COMPLEX[name](operand))
    )
    assert torch.equal(made, expected)
    assert made.signbit().tolist() == expected.signbit().tolist()


def test_programs_without_such_pairs_get_no_barrier() -> None:
    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tanh(x @ y + 1.0) * 0.5 + jnp.log(jnp.sqrt(x)) / 8.0

    lowered = jax.jit(function).lower(jnp.ones((4, 4)), jnp.ones((4, 4)))
    assert keep_arithmetic(lowered.compiler_ir("stablehlo")) == 0
    assert "optimization_barrier" not in lowered.as_text()


def test_a_pair_is_seen_across_a_function_and_a_reshape() -> None:
    inner = jax.jit(lambda x: jnp.exp(x).reshape(2, 2))
    lowered = jax.jit(lambda x: jnp.log(inner(x))).lower(jnp.ones(4))
    module = lowered.compiler_ir("stablehlo")
    assert keep_arithmetic(module) == (jax.__version_info__ < (0, 11))
    assert keep_arithmetic(module) == 0, "once is enough"


# A model, its batch, and the most barriers that one step of it may have in all its programs.
STEPS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], tuple[torch.Tensor, torch.Tensor]], int]] = {
    "encoder": (lambda: models.Encoder(0.1, 1), models.values(2, 8, 64), 4),
    "GPT-2": (lambda: models.Gpt2(0.1, 1, 64, 2, 64, 8), models.tokens(2, 8, 64), 6),
    "BERT": (lambda: models.Bert(0.1, 1, 64, 64, 8), models.tokens(2, 8, 64), 6),
    # Three for each of 20 batch normalizations, on statistics of channels, and the exponentials of softmax.
    "ResNet": (models.ResNet, models.values(2, 3, 32, 32), 62),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_training_step_has_few_barriers(name: str) -> None:
    build, batch, most = STEPS[name]
    model = build().to("xla").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    of_steps: list[list[int]] = []

    def counted(module: Any) -> int:
        of_steps[-1].append(keep_arithmetic(module))
        return of_steps[-1][-1]

    with mock.patch.object(xla_compile, "keep_arithmetic", counted):
        for _ in range(2):
            of_steps.append([])
            inputs, classes = (each.to("xla") for each in batch())
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), classes).backward()
            optimizer.step()
            torch_xla.sync(wait=True)
    assert of_steps[0], "nothing was compiled"
    assert max(map(sum, of_steps)) <= most


REMAINDERS = (0.0, 1.0, 2.0, -0.0, 0.3, math.inf)


@pytest.mark.parametrize("way", WAYS)
def test_calls_of_one_function_with_other_numbers_stay_apart(
    way: Callable[[Function, torch.Tensor], torch.Tensor],
) -> None:
    # JAX's remainder is a function of its own in the program, which each call gives another number.
    operand = torch.tensor([0.5, -0.0, 0.0, 2.0, -1.5, 3.0, 1e-3])

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.remainder(x, number) for number in REMAINDERS])

    torch.testing.assert_close(way(function, operand.to("xla")).cpu(), function(operand), equal_nan=True)


def test_other_arithmetic_of_complex_numbers_is_left_alone() -> None:
    values = torch.tensor([3 + 4j, -0.0 + 1j])
    for program in (lambda x: x / 2 / 3, lambda x: x + 0.0, lambda x: x * 2j * 3, lambda x: (x * 2) + (x * 2)):
        torch.testing.assert_close(program(values.to("xla")).cpu(), program(values))


@pytest.mark.slow
def test_products_overflow_in_programs_that_are_compiled_as_those_of_users() -> None:
    """Quick tests have LLVM optimize too little to join the factors of a product."""
    chosen = "(product or exponent) and not users"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", chosen]
    done = subprocess.run(command, env={**os.environ, "XLA_FLAGS": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
