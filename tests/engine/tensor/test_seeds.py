"""Random numbers: reproducible, independent, distributed as they should be, and never a reason to compile."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._engine.metrics import counters

DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(6, device="xla"),
    "randn": lambda: torch.randn(6, device="xla"),
    "randint": lambda: torch.randint(0, 1000, (6,), device="xla"),
    "randperm": lambda: torch.randperm(8, device="xla"),
    "bernoulli_": lambda: torch.empty(40, device="xla").bernoulli_(0.5),
    "normal_": lambda: torch.empty(6, device="xla").normal_(3, 2),
    "uniform_": lambda: torch.empty(6, device="xla").uniform_(-1, 1),
    "exponential_": lambda: torch.empty(6, device="xla").exponential_(),
    "rand_like": lambda: torch.rand_like(torch.zeros(6, device="xla")),
    "normal": lambda: torch.normal(torch.zeros(6, device="xla"), torch.ones(6, device="xla")),
    "multinomial": lambda: torch.multinomial(torch.ones(30, device="xla"), 6),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(40, device="xla"), 0.5),
    "kaiming": lambda: torch.nn.init.kaiming_uniform_(torch.empty(2, 3, device="xla")),
    # So narrow that it draws nothing again: what does depends on the values, and is a program more.
    "trunc_normal": lambda: torch.nn.init.trunc_normal_(torch.empty(6, device="xla"), std=0.02),
}


@pytest.mark.parametrize("draw", list(DRAWS.values()), ids=list(DRAWS))
def test_a_seed_repeats_the_sequence_and_draws_differ_from_each_other(draw: Callable[[], torch.Tensor]) -> None:
    torch.manual_seed(1)
    first, second = draw(), draw()
    torch.manual_seed(1)
    again = draw()
    torch.manual_seed(2)
    other = draw()
    torch_xla.sync()
    assert torch.equal(first.cpu(), again.cpu())
    assert not torch.equal(first.cpu(), second.cpu())
    assert not torch.equal(first.cpu(), other.cpu())


@pytest.mark.parametrize("draw", list(DRAWS.values()), ids=list(DRAWS))
def test_drawing_never_compiles_twice(draw: Callable[[], torch.Tensor]) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        for _ in range(2):
            x = draw()
            torch_xla.sync()
            del x
        if not seed:
            counters.clear()
    assert counters.value_of("UncachedCompile") is None


def test_the_sequence_does_not_depend_on_where_steps_end() -> None:
    torch.manual_seed(5)
    together = [torch.rand(3, device="xla") for _ in range(4)]
    torch_xla.sync()
    torch.manual_seed(5)
    apart = []
    for _ in range(4):
        apart.append(torch.rand(3, device="xla"))
        torch_xla.sync()
    assert all(torch.equal(x.cpu(), y.cpu()) for x, y in zip(together, apart, strict=True))


def test_reading_one_draw_does_not_disturb_the_others() -> None:
    torch.manual_seed(5)
    expected = [torch.rand(3, device="xla") for _ in range(3)]
    torch_xla.sync()
    torch.manual_seed(5)
    first, second, third = (torch.rand(3, device="xla") for _ in range(3))
    assert torch.equal(third.cpu(), expected[2].cpu())
    assert torch.equal(first.cpu(), expected[0].cpu())
    assert torch.equal(second.cpu(), expected[1].cpu())


def test_an_unused_draw_still_advances_the_state() -> None:
    torch.manual_seed(5)
    torch.rand(3, device="xla")
    second = torch.rand(3, device="xla").cpu()
    torch.manual_seed(5)
    first = torch.rand(3, device="xla").cpu()
    assert not torch.equal(first, second)
    assert torch.equal(torch.rand(3, device="xla").cpu(), second)


def test_the_device_has_a_seed_of_its_own() -> None:
    torch_xla.manual_seed(3)
    host = torch.random.get_rng_state()
    first = torch.rand(3, device="xla").cpu()
    assert torch.equal(torch.random.get_rng_state(), host)
    torch_xla.manual_seed(3)
    assert torch.equal(torch.rand(3, device="xla").cpu(), first)
    torch.xla.manual_seed(3)  # type: ignore[attr-defined]
    assert torch.equal(torch.rand(3, device="xla").cpu(), first)


def test_the_state_is_an_int_that_can_be_restored() -> None:
    xm.set_rng_state(7)
    assert xm.get_rng_state() == 7
    first = torch.rand(3, device="xla")
    state = xm.get_rng_state()
    assert isinstance(state, int) and state != 7
    second = torch.rand(3, device="xla")
    xm.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="xla").cpu(), second.cpu())
    xm.set_rng_state(7)
    assert torch.equal(torch.rand(3, device="xla").cpu(), first.cpu())


def test_fork_rng_puts_the_state_back() -> None:
    torch.manual_seed(9)
    with torch.random.fork_rng(devices=[0], device_type="xla"):
        inside = torch.rand(3, device="xla").cpu()
        torch.manual_seed(1234)
    assert torch.equal(torch.rand(3, device="xla").cpu(), inside)


WAYS: dict[str, Callable[[Any], Any]] = {
    "recorded": lambda function: function,
    "replayed": lambda function: torch_xla.compile(function, replay=True),
    "openxla": lambda function: torch.compile(function, backend="openxla"),
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("rate", [0.5, 0.1, 0.123456])
def test_a_rate_gives_the_same_mask_whatever_rates_came_before(rate: float, way: str) -> None:
    x = torch.ones(500, device="xla")
    drop = WAYS[way](lambda x, p: torch.nn.functional.dropout(x, p))
    masks = []
    for earlier in ((), (0.3,), (0.3, 0.7)):
        for p in (*earlier, rate):
            torch.manual_seed(3)
            last = drop(x, p)
            torch_xla.sync()
        masks.append(last.cpu())
    torch.manual_seed(3)
    with torch_xla.experimental.eager_mode_context(True):
        masks.append(torch.nn.functional.dropout(x, rate).cpu())
    assert all(torch.equal(mask, masks[0]) for mask in masks)


def test_two_draws_of_a_program_are_equal_after_another_rate() -> None:
    x = torch.ones(500, device="xla")

    def drop(p: float) -> torch.Tensor:
        torch.manual_seed(3)
        return torch.nn.functional.dropout(x, p)

    drop(0.3)
    torch_xla.sync()
    first, second = drop(0.5), drop(0.5) + 0
    torch_xla.sync()
    assert torch.equal(first.cpu(), second.cpu())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_drops_again_what_it_dropped_after_another_rate(reentrant: bool) -> None:
    for rate in (0.3, 0.5, 0.3):
        x = torch.ones(500, device="xla", requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(torch.nn.functional.dropout, x, rate, use_reentrant=reentrant)
        y.sum().backward()
        torch_xla.sync()
        assert x.grad is not None and torch.equal(x.grad.cpu(), y.detach().cpu())


def test_dropout_scales_and_its_backward_uses_the_same_mask() -> None:
    x = torch.ones(1000, device="xla", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    assert x.grad is not None
    values, gradient = y.detach().cpu(), x.grad.cpu()
    torch.testing.assert_close(values.unique(), torch.tensor([0.0, 4 / 3]))
    assert torch.equal(values, gradient)
    assert 0.15 < (values == 0).float().mean() < 0.35


COUNT = 40_000


def within(value: float, expected: float, deviation: float) -> bool:
    """Return whether a mean of COUNT draws is within five of its standard errors: it fails once in a million."""
    return abs(value - expected) < 5 * deviation / math.sqrt(COUNT)


@pytest.mark.parametrize(
    ("draw", "mean", "variance", "low", "high"),
    [
        (lambda: torch.rand(COUNT, device="xla"), 0.5, 1 / 12, 0.0, 1.0),
        (lambda: torch.randn(COUNT, device="xla"), 0.0, 1.0, -8.0, 8.0),
        (lambda: torch.rand(COUNT, device="xla", dtype=torch.float64), 0.5, 1 / 12, 0.0, 1.0),
        (lambda: torch.randint(-5, 5, (COUNT,), device="xla"), -0.5, 99 / 12, -5, 9 - 5),
        (lambda: torch.empty(COUNT, device="xla").exponential_(2.0), 0.5, 0.25, 0.0, 20.0),
        (lambda: torch.empty(COUNT, device="xla").bernoulli_(0.3), 0.3, 0.21, 0.0, 1.0),
        (lambda: torch.empty(COUNT, device="xla").geometric_(0.5), 2.0, 2.0, 1.0, 60.0),
    ],
    ids=["rand", "randn", "double", "randint", "exponential", "bernoulli", "geometric"],
)
def test_draws_have_the_moments_of_their_distribution(
    draw: Callable[[], torch.Tensor], mean: float, variance: float, low: float, high: float
) -> None:
    torch.manual_seed(2026)
    sample = draw().cpu().double()
    assert low <= sample.min() and sample.max() <= high
    assert within(sample.mean().item(), mean, math.sqrt(variance))
    assert sample.var().item() == pytest.approx(variance, rel=0.06)
    follower = torch.stack([sample[:-1] - mean, sample[1:] - mean]).prod(0).mean().item()
    assert within(follower, 0.0, variance)


def test_uniform_draws_fill_the_interval_evenly() -> None:
    torch.manual_seed(11)
    counts = torch.histc(torch.rand(COUNT, device="xla").cpu(), 20, 0.0, 1.0)
    expected = COUNT / 20
    assert ((counts - expected) ** 2 / expected).sum() < 50  # chi-square with 19 degrees: once in ten thousand


def test_a_permutation_holds_every_number_once() -> None:
    assert sorted(torch.randperm(100, device="xla").tolist()) == list(range(100))
