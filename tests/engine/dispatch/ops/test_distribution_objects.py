"""Every way to draw on the device: the distribution PyTorch documents, natively, repeated by a seed.

The rules have tests of their own; these go through PyTorch's functions, modules and in-place methods.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torch_xla
from torch_xla._engine.metrics.report import READS
from torch_xla.debug import metrics

COUNT = 20_000

Cdf = Callable[[Tensor], Tensor]


def empty(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(COUNT, device="xla", dtype=dtype)


def ones(*size: int) -> Tensor:
    return torch.ones(*size, device="xla")


def normal_cdf(mean: float = 0.0, deviation: float = 1.0) -> Cdf:
    return lambda x: torch.special.ndtr((x - mean) / deviation)


def truncated(x: Tensor) -> Tensor:
    low, high = (0.5 * math.erfc(-bound / math.sqrt(2)) for bound in (-1.0, 2.0))
    return (torch.special.ndtr(x) - low) / (high - low)


CONTINUOUS: dict[str, tuple[Callable[[], Tensor], Cdf]] = {
    "rand": (lambda: torch.rand(COUNT, device="xla"), lambda x: x),
    "rand_like": (lambda: torch.rand_like(empty()), lambda x: x),
    "uniform_": (lambda: empty().uniform_(-2, 3), lambda x: (x + 2) / 5),
    "randn": (lambda: torch.randn(COUNT, device="xla"), normal_cdf()),
    "randn of doubles": (lambda: torch.randn(COUNT, device="xla", dtype=torch.float64), normal_cdf()),
    "randn_like": (lambda: torch.randn_like(empty()), normal_cdf()),
    "normal_": (lambda: empty().normal_(3, 2), normal_cdf(3, 2)),
    "normal of a size": (lambda: torch.normal(1.0, 0.5, (COUNT,), device="xla"), normal_cdf(1, 0.5)),
    "normal of means": (lambda: torch.normal(ones(COUNT), 0.5), normal_cdf(1, 0.5)),
    "normal of tensors": (lambda: torch.normal(ones(COUNT), 2 * ones(COUNT)), normal_cdf(1, 2)),
    "log_normal_": (lambda: empty().log_normal_(0.5, 0.7), lambda x: normal_cdf(0.5, 0.7)(x.log())),
    "exponential_": (lambda: empty().exponential_(2.5), lambda x: -torch.expm1(-2.5 * x)),
    "cauchy_": (lambda: empty().cauchy_(1, 2), lambda x: 0.5 + torch.atan((x - 1) / 2) / math.pi),
    "trunc_normal_": (lambda: nn.init.trunc_normal_(empty(), a=-1, b=2), truncated),
    "rrelu": (lambda: nn.RReLU(0.1, 0.3).train()(-ones(COUNT)), lambda x: (x + 0.3) / 0.2),
    "rrelu_": (lambda: functional.rrelu_(-ones(COUNT), 0.1, 0.3, training=True), lambda x: (x + 0.3) / 0.2),
    "gamma": (lambda: torch.distributions.Gamma(ones(COUNT), 2.0).sample(), lambda x: -torch.expm1(-2 * x)),
    "beta": (lambda: torch.distributions.Beta(2 * ones(COUNT), ones(COUNT)).sample(), lambda x: x**2),
    "laplace": (
        lambda: torch.distributions.Laplace(ones(COUNT), 1.0).sample(),
        lambda x: 0.5 - 0.5 * (x - 1).sign() * torch.expm1(-(x - 1).abs()),
    ),
    "gumbel": (
        lambda: torch.distributions.Gumbel(0 * ones(COUNT), 1.0).sample(),
        lambda x: torch.exp(-torch.exp(-x)),
    ),
}

# The draws, their mean and their variance.
DISCRETE: dict[str, tuple[Callable[[], Tensor], float, float]] = {
    "bernoulli": (lambda: torch.bernoulli(0.3 * ones(COUNT)), 0.3, 0.21),
    "bernoulli_": (lambda: empty().bernoulli_(0.3), 0.3, 0.21),
    "bernoulli_ of a tensor": (lambda: empty().bernoulli_(0.3 * ones(COUNT)), 0.3, 0.21),
    "randint": (lambda: torch.randint(-5, 5, (COUNT,), device="xla"), -0.5, 99 / 12),
    "randint_like": (lambda: torch.randint_like(empty(torch.int32), 0, 7), 3.0, 4.0),
    "random_": (lambda: empty(torch.int64).random_(2, 9), 5.0, 4.0),
    "geometric_": (lambda: empty().geometric_(0.25), 4.0, 12.0),
    "poisson": (lambda: torch.poisson(3.5 * ones(COUNT)), 3.5, 3.5),
    "binomial": (lambda: torch.binomial(10 * ones(COUNT), 0.3 * ones(COUNT)), 3.0, 2.1),
    "multinomial": (lambda: torch.multinomial(ones(5), COUNT, replacement=True), 2.0, 2.0),
    "categorical": (lambda: torch.distributions.Categorical(ones(5)).sample((COUNT,)), 2.0, 2.0),
    "gumbel_softmax": (lambda: functional.gumbel_softmax(0 * ones(COUNT, 4), hard=True)[:, 1], 0.25, 0.1875),
    "dropout": (lambda: functional.dropout(ones(COUNT), 0.4), 1.0, 0.4 / 0.6),
    "dropout_": (lambda: functional.dropout(ones(COUNT), 0.4, inplace=True), 1.0, 0.4 / 0.6),
}


def followed(draw: Callable[[], Tensor]) -> Tensor:
    """The draw on the host, after it was seen to be native, to repeat with its seed, and to differ with another."""
    draws = []
    metrics.clear_all()
    for seed in (2026, 2026, 7):
        torch.manual_seed(seed)
        draws.append(draw())
    torch_xla.sync()
    assert set(metrics.executed_fallback_ops()) <= set(READS)  # PyTorch reads parameters to validate them
    first, again, other = (one.cpu() for one in draws)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    return first.double()


@pytest.mark.parametrize(("draw", "cdf"), list(CONTINUOUS.values()), ids=list(CONTINUOUS))
def test_continuous_draws_have_their_distribution(draw: Callable[[], Tensor], cdf: Cdf) -> None:
    expected = cdf(followed(draw).sort().values)
    steps = torch.arange(COUNT + 1, dtype=torch.float64, device="cpu") / COUNT
    distance = torch.maximum((steps[1:] - expected).max(), (expected - steps[:-1]).max())
    assert distance < 1.95 / math.sqrt(COUNT)  # chance exceeds this once in a thousand times


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "mean", "variance"), list(DISCRETE.values()), ids=list(DISCRETE))
def test_discrete_draws_have_their_moments(draw: Callable[[], Tensor], mean: float, variance: float) -> None:
    sample = followed(draw)
    assert abs(sample.mean() - mean) < 4.5 * math.sqrt(variance / COUNT)
    assert sample.var() == pytest.approx(variance, rel=0.07)


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    torch.manual_seed(3)
    kept = functional.alpha_dropout(torch.randn(COUNT, device="xla"), 0.3, training=True).cpu()
    assert abs(kept.mean()) < 0.04 and kept.var() == pytest.approx(1, rel=0.06)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_feature_dropout_drops_whole_channels(dims: int) -> None:
    torch.manual_seed(3)
    dropout = getattr(nn, f"Dropout{dims}d")(0.3)
    channels = dropout(ones(200, 50, *(2,) * dims)).cpu().reshape(10_000, -1)
    assert torch.equal(channels.amin(1), channels.amax(1))
    torch.testing.assert_close(channels.unique(), torch.tensor([0, 1 / 0.7]))
    assert abs((channels[:, 0] == 0).double().mean() - 0.3) < 4.5 * math.sqrt(0.21 / 10_000)


def test_feature_alpha_dropout_drops_whole_channels() -> None:
    torch.manual_seed(3)
    channels = nn.FeatureAlphaDropout(0.3)(ones(100, 50, 4)).cpu().reshape(5_000, -1)
    assert torch.equal(channels.amin(1), channels.amax(1)) and len(channels.unique()) == 2
    dropped = channels[:, 0] == channels.min()
    assert abs(dropped.double().mean() - 0.3) < 4.5 * math.sqrt(0.21 / 5_000)


def test_draws_without_replacement_follow_the_weights_and_never_repeat() -> None:
    torch.manual_seed(3)
    weights = torch.tensor([1.0, 2.0, 4.0, 0.0, 1.0], device="xla").expand(COUNT, 5)
    drawn = torch.multinomial(weights, 3).cpu()
    assert (drawn != 3).all() and (drawn.sort(1).values.diff(dim=1) > 0).all()
    share = torch.bincount(drawn[:, 0], minlength=5).double() / COUNT
    assert (share - torch.tensor([1, 2, 4, 0, 1]) / 8).abs().max() < 4.5 * 0.5 / math.sqrt(COUNT)


def test_a_permutation_puts_every_number_everywhere() -> None:
    torch.manual_seed(3)
    places = torch.stack([torch.randperm(5, device="xla").cpu() for _ in range(400)])
    assert (places.sort(1).values == torch.arange(5)).all()
    for place in range(5):
        counts = torch.bincount(places[:, place], minlength=5)
        assert ((counts - 80.0) ** 2 / 80).sum() < 23.5  # chi-square with 4 degrees: once in ten thousand
