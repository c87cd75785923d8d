"""Counts, gammas and categories at fixed seeds, compared with their exact probabilities."""

import math
from collections.abc import Callable

import pytest
import torch

import torch_xla
from tests.support.rules import apply_rule, check_rule

aten = torch.ops.aten
N = 20_000


def assert_probabilities(samples: torch.Tensor, log_probability: torch.Tensor) -> None:
    """Every value is met as often as expected, within four standard deviations."""
    counts = torch.bincount(samples.long(), minlength=log_probability.numel())[: log_probability.numel()]
    p = log_probability.double().exp()
    allowed = 4 * (p * (1 - p) / N).sqrt() + 3 / N
    assert ((counts.double() / N - p).abs() <= allowed).all()


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gamma": torch._standard_gamma,
    "dirichlet": torch._sample_dirichlet,
    "poisson": torch.poisson,
    "binomial": lambda x: torch.binomial((x * 20).round(), x / 20),
    "multinomial": lambda x: torch.multinomial(x, 2),
    "multinomial with replacement": lambda x: torch.multinomial(x, 20, replacement=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWS)
def test_a_line_that_was_run_with_other_parameters_draws_the_same(name: str) -> None:
    """Compiled as programs of users are: what XLA knows of the parameters must not change the numbers."""

    def last(*parameters: float) -> torch.Tensor:
        for parameter in parameters:
            torch.manual_seed(3)
            drawn = DRAWS[name](torch.zeros(70, 3, dtype=torch.float64, device="xla") + parameter)
            torch_xla.sync()
        return drawn.cpu()

    assert torch.equal(last(3.7), last(0.5, 3.7))


def test_poisson_counts() -> None:
    rates = [0.0, 0.01, 0.5, 3.0, 9.99, 10.0, 25.0, 300.0]
    drawn = apply_rule(aten.poisson.default, torch.tensor(rates)[:, None].expand(len(rates), N))
    for samples, rate in zip(drawn, rates, strict=True):
        assert (samples == samples.round()).all() and samples.min() >= 0
        support = torch.arange(0, int(rate + 10 * math.sqrt(rate) + 10), dtype=torch.float64)
        log_rate = torch.tensor(rate, dtype=torch.float64)
        assert_probabilities(samples, torch.xlogy(support, log_rate) - rate - torch.lgamma(support + 1))


def test_poisson_rates_vary_from_element_to_element() -> None:
    rates = torch.tensor([0.0, 1e-3, 1.0, 50.0, 1e6], dtype=torch.float64)
    samples = apply_rule(aten.poisson.default, rates[:, None].expand(5, 5000))
    for row, rate in zip(samples, rates.tolist(), strict=True):
        assert abs(row.mean().item() - rate) <= 4 * math.sqrt(rate / 5000)
        assert abs(row.var().item() - rate) <= 0.2 * rate + 0.01
    assert apply_rule(aten.poisson.default, torch.zeros(0)).shape == (0,)


def test_binomial_counts() -> None:
    cases = [(10, 0.3), (7, 0.9), (40, 0.5), (1000, 0.02), (1000, 0.9), (1, 0.5)]
    counts, probs = torch.tensor(cases, dtype=torch.float64).t()
    drawn = apply_rule(aten.binomial.default, counts[:, None].expand(len(cases), N), probs[:, None])
    for samples, (count, prob) in zip(drawn, cases, strict=True):
        k = torch.arange(0, count + 1, dtype=torch.float64)
        n = torch.tensor(float(count), dtype=torch.float64)
        choices = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
        assert_probabilities(samples, choices + k * math.log(prob) + (n - k) * math.log1p(-prob))


def test_binomial_without_chance() -> None:
    count = torch.tensor([0.0, 5.0, 5.0, 5.0, 200.0], dtype=torch.float64)
    prob = torch.tensor([0.5, 0.0, 1.0, math.nan, 1.0], dtype=torch.float64)
    check_rule(aten.binomial.default, count, prob)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gammas(dtype: torch.dtype) -> None:
    parameters = torch.tensor([0.05, 0.7, 1.0, 2.5, 100.0], dtype=dtype)[:, None].expand(5, N)
    drawn = apply_rule(aten._standard_gamma.default, parameters)
    assert drawn.dtype is dtype and (drawn > 0).all()
    ordered = drawn.double().sort(-1).values
    expected = torch.special.gammainc(parameters.double(), ordered)
    distances = (torch.arange(1, N + 1, dtype=torch.float64) / N - expected).abs().amax(-1)
    assert (distances < 1.95 / math.sqrt(N)).all()


def test_gammas_are_never_zero() -> None:
    parameters = torch.tensor([1e-5, 0.0, -1.0])
    check_rule(aten._standard_gamma.default, parameters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_gradient_of_a_gamma_sample(dtype: torch.dtype) -> None:
    shape = torch.tensor([0.01, 0.3, 1.0, 2.0, 5.0, 20.0], dtype=dtype)[:, None]
    quantile = torch.tensor([0.1, 0.5, 0.9, 1.5], dtype=dtype)
    # Two different approximations of an integral without a closed form.
    check_rule(aten._standard_gamma_grad.default, shape, (shape * quantile).contiguous(), rtol=2e-3, atol=1e-4)


def test_dirichlet_samples_sum_to_one_with_the_right_marginals() -> None:
    parameters = torch.tensor([0.5, 1.0, 3.0])
    samples = apply_rule(aten._sample_dirichlet.default, parameters.expand(N, 3))
    torch.testing.assert_close(samples.sum(-1), torch.ones(N))
    mean = parameters / parameters.sum()
    torch.testing.assert_close(samples.mean(0), mean, rtol=0, atol=0.01)
    variance = mean * (1 - mean) / (parameters.sum() + 1)
    torch.testing.assert_close(samples.var(0), variance, rtol=0.05, atol=0)
    assert torch.isfinite(apply_rule(aten._sample_dirichlet.default, torch.full((4, 3), 1e-4)).log()).all()


WEIGHTS = torch.tensor([0.0, 1.0, 3.0, 0.0, 4.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial_draws_categories_by_weight(dtype: torch.dtype, replacement: bool) -> None:
    many = apply_rule(aten.multinomial.default, WEIGHTS.to(dtype), N, True)
    one = apply_rule(aten.multinomial.default, WEIGHTS.to(dtype).expand(N, 5), 1, replacement)
    assert many.shape == (N,) and one.shape == (N, 1)
    for samples in (many, one.flatten()):
        assert_probabilities(samples, (WEIGHTS / WEIGHTS.sum()).log())


def test_multinomial_without_replacement_never_repeats() -> None:
    samples = apply_rule(aten.multinomial.default, WEIGHTS.expand(N, 5), 3)
    assert (samples.sort(-1).values == torch.tensor([1, 2, 4])).all()
    assert_probabilities(samples[:, 0], (WEIGHTS / WEIGHTS.sum()).log())
    # Then 2 (3 of 4 remaining) follows 4 in 3/4 of the cases.
    second = samples[samples[:, 0] == 4][:, 1]
    assert abs((second == 2).double().mean().item() - 0.75) < 0.02


def test_multinomial_rows_have_their_own_weights() -> None:
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    samples = apply_rule(aten.multinomial.default, weights, 1000, True)
    assert (samples[0] == 0).all()
    assert abs((samples[1] == 1).double().mean().item() - 0.5) < 0.07 and (samples[1] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gammas_of_infinite_and_undefined_concentrations_end(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    parameters = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -1.0, 1e30, 2.0], dtype=dtype)
    drawn = torch._standard_gamma(parameters.to("xla")).cpu()
    assert drawn[:5].tolist() == [math.inf, tiny, tiny, tiny, tiny]  # as on the CPU
    assert abs(drawn[5] / 1e30 - 1) < 1e-6 and 0 < drawn[6] < 50
    assert torch._sample_dirichlet(parameters[[0, 6]].to("xla")).cpu().tolist() == [tiny, tiny]
