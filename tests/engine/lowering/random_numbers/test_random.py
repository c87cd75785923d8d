"""Random numbers at fixed seeds: ranges, dtypes, and distributions by moments and the Kolmogorov-Smirnov distance."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from tests.support.rules import apply_rule, check_rule
from tests.support.topologies import forms_of_a_tpu as forms_of_a_tpu
from torch_xla._engine.lowering.machinery.registry import all_rules
from torch_xla._engine.lowering.random_numbers import random
from torch_xla.experimental.eager import eager_mode_context

aten = torch.ops.aten
N = 20_000
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def zeros(dtype: torch.dtype = torch.float32, *shape: int) -> torch.Tensor:
    return torch.zeros(shape or (N,), dtype=dtype)


def normal_cdf(x: torch.Tensor) -> torch.Tensor:
    return torch.special.ndtr(x)


def assert_distributed(samples: torch.Tensor, cdf: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The distance between two distribution functions is one that chance exceeds once in a thousand times."""
    ordered = samples.double().flatten().sort().values
    count = ordered.numel()
    expected = cdf(ordered)
    above = (torch.arange(1, count + 1, dtype=torch.float64) / count - expected).max()
    below = (expected - torch.arange(count, dtype=torch.float64) / count).max()
    assert max(above, below) < 1.95 / math.sqrt(count)


def assert_mean(samples: torch.Tensor, mean: float, deviation: float) -> None:
    assert abs(samples.double().mean().item() - mean) < 4 * deviation / math.sqrt(samples.numel())


CONTINUOUS: list[tuple[Any, tuple[float, ...], Callable[[torch.Tensor], torch.Tensor]]] = [
    (aten.uniform.default, (), lambda x: x),
    (aten.uniform.default, (-3.0, 5.0), lambda x: (x + 3) / 8),
    (aten.normal_functional.default, (), normal_cdf),
    (aten.normal_functional.default, (2.0, 0.5), lambda x: normal_cdf((x - 2) / 0.5)),
    (aten.log_normal.default, (0.5, 0.7), lambda x: normal_cdf((x.log() - 0.5) / 0.7)),
    (aten.exponential.default, (), lambda x: -torch.expm1(-x)),
    (aten.exponential.default, (2.5,), lambda x: -torch.expm1(-2.5 * x)),
    (aten.cauchy.default, (1.0, 2.0), lambda x: 0.5 + torch.atan((x - 1) / 2) / math.pi),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_continuous_distributions(dtype: torch.dtype) -> None:
    for op, arguments, cdf in CONTINUOUS:
        samples = apply_rule(op, zeros(dtype), *arguments)
        assert samples.dtype is dtype
        assert torch.isfinite(samples).all(), op
        assert_distributed(samples, cdf)


def test_another_key_gives_other_numbers() -> None:
    first, second = (apply_rule(aten.normal_functional.default, zeros(), seed=seed) for seed in (1, 2))
    assert (first == second).sum() < 10
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.03


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (3,), (5, 7)])
def test_any_shape_can_be_drawn(shape: tuple[int, ...]) -> None:
    like = torch.zeros(shape)
    for op, arguments, _ in CONTINUOUS:
        assert apply_rule(op, like, *arguments).shape == like.shape
    out, mask = apply_rule(aten.native_dropout.default, like, 0.5, True)
    assert out.shape == mask.shape == like.shape


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_numbers_reach_zero_but_never_one(dtype: torch.dtype) -> None:
    samples = apply_rule(aten.uniform.default, zeros(dtype)).to(dtype)
    assert samples.min() >= 0 and samples.max() < 1
    if samples.element_size() == 2:
        digits = {torch.bfloat16: 8, torch.float16: 11}[dtype]
        assert set((samples.double() * 2**digits).tolist()) <= set(range(2**digits))
        assert (samples == 0).any() and (samples == 1 - 2.0**-digits).any()


def test_the_largest_bits_stay_below_one_and_the_inner_numbers_off_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    key = jax.random.key(0, impl="rbg")
    with jax.enable_x64(True):
        for fill in (0, -1):
            constant = lambda key, shape, dtype, fill=fill: jnp.full(shape, np.int64(fill).astype(dtype), dtype)  # noqa: E731
            monkeypatch.setattr(random, "random_bits", constant)
            for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
                assert 0 <= random.uniform_numbers(key, (), dtype) < 1
                assert 0 < random.inner_uniform_numbers(key, (), dtype) < 1
                assert jnp.isfinite(random.normal_numbers(key, (), dtype))
                assert 0 < random.exponential_numbers(key, (), dtype) < 40
                assert jnp.isfinite(random.cauchy(jnp.zeros((), dtype), key=key))


def test_complex_numbers_have_independent_parts() -> None:
    samples = apply_rule(aten.normal_functional.default, zeros(torch.complex64), 1.0, 2.0)
    assert samples.dtype is torch.complex64
    for part in (samples.real, samples.imag):
        assert_distributed(part, lambda x: normal_cdf((x - 1) / math.sqrt(2)))
    for device in ("cpu", "xla"):  # PyTorch moves both parts by the mean
        assert torch.zeros(2, dtype=torch.complex64, device=device).normal_(3.0, 0.0).tolist() == [3 + 3j] * 2
    samples = apply_rule(aten.uniform.default, zeros(torch.complex128), -1.0, 1.0)
    for part in (samples.real, samples.imag):
        assert_distributed(part, lambda x: (x + 1) / 2)
    assert abs(torch.corrcoef(torch.stack([samples.real, samples.imag]))[0, 1]) < 0.03


def test_normal_numbers_take_means_and_deviations_from_tensors() -> None:
    mean, std = torch.tensor([[-4.0], [3.0]], dtype=torch.float64), torch.tensor([0.5, 2.0])
    both = apply_rule(aten.normal.Tensor_Tensor, mean[..., None].expand(2, 1, N), std[:, None].expand(2, N))
    assert both.shape == (2, 2, N)
    for i in range(2):
        for j in range(2):
            assert_distributed(both[i, j], lambda x, i=i, j=j: normal_cdf((x - mean[i, 0]) / std[j]))
    one = apply_rule(aten.normal.Tensor_float, torch.full((N,), 2.0), 0.5)
    assert_distributed(one, lambda x: normal_cdf((x - 2) / 0.5))
    one = apply_rule(aten.normal.float_Tensor, 2.0, torch.full((N,), 0.5))
    assert_distributed(one, lambda x: normal_cdf((x - 2) / 0.5))
    one = apply_rule(aten.normal.float_float, 2.0, 0.5, [N], dtype=torch.float64)
    assert one.dtype is torch.float64
    assert_distributed(one, lambda x: normal_cdf((x - 2) / 0.5))


@pytest.mark.parametrize("p", [0.3, 0.5, 0.001, 0.99])
def test_bernoulli_succeeds_with_its_probability(p: float) -> None:
    deviation = math.sqrt(p * (1 - p))
    assert_mean(apply_rule(aten.bernoulli.p, zeros(), p).float(), p, deviation)
    assert_mean(apply_rule(aten.bernoulli.default, torch.full((N,), p)).float(), p, deviation)
    assert_mean(apply_rule(aten.bernoulli.Tensor, zeros(torch.int32), torch.full((), p)).float(), p, deviation)


def test_bernoulli_is_certain_at_the_ends() -> None:
    for p in (0.0, 1.0):
        for dtype in FLOATS:
            assert (apply_rule(aten.bernoulli.default, torch.full((N,), p, dtype=dtype)).to(dtype) == p).all()
        assert (apply_rule(aten.bernoulli.p, zeros(), p).float() == p).all()


def test_a_probability_that_changes_between_steps_is_met_too() -> None:
    with jax.enable_x64(True):
        key = jax.random.key(3, impl="rbg")
        run = jax.jit(lambda x, p: random.native_dropout(x, p, True, key=key))
        for p in (0.0, 0.25, 1.0):
            out, mask = run(jnp.ones(N, jnp.float32), p)
            assert out.dtype == np.float32
            assert abs(float(mask.mean()) - (1 - p)) < 0.02
            assert abs(float(out.mean()) - (p < 1)) < 0.02


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("p", [0.1, 0.5, 1e-3])
def test_dropout_scales_what_it_keeps(dtype: torch.dtype, p: float) -> None:
    x = torch.linspace(0.5, 2, N).to(dtype)
    out, mask = apply_rule(aten.native_dropout.default, x, p, True)
    assert mask.dtype is torch.bool
    assert_mean(mask.float(), 1 - p, math.sqrt(p * (1 - p)))
    torch.testing.assert_close(out.to(dtype), aten.native_dropout_backward.default(x, mask, 1 / (1 - p)))


def test_dropout_of_nothing_and_of_everything() -> None:
    x = torch.tensor([1.0, -2.0, float("inf"), float("nan"), 0.0])
    for p, train in ((0.0, True), (1.0, True), (0.5, False), (1.0, None)):
        check_rule(aten.native_dropout.default, x, p, train)


def test_dropout_backward_multiplies_by_the_mask() -> None:
    mask = torch.tensor([True, False, True, False])
    for dtype in FLOATS:
        grad = torch.tensor([1.2, 3.0, -0.7, float("inf")], dtype=dtype)
        check_rule(aten.native_dropout_backward.default, grad, mask, 1 / 0.9)


def test_geometric_counts_trials() -> None:
    for dtype in (torch.float32, torch.float64, torch.int64):
        samples = apply_rule(aten.geometric.default, zeros(dtype), 0.3).double()
        assert samples.min() == 1 and (samples == samples.round()).all()
        assert_mean(samples, 1 / 0.3, math.sqrt(0.7) / 0.3)
        for k in range(1, 5):
            expected = 0.3 * 0.7 ** (k - 1)
            assert_mean((samples == k).float(), expected, math.sqrt(expected))


RANGES = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, *FLOATS]


@pytest.mark.parametrize("dtype", RANGES, ids=str)
def test_random_fills_the_range_of_the_dtype(dtype: torch.dtype) -> None:
    if dtype.is_floating_point:
        largest = {torch.float32: 2**24, torch.float64: 2**53, torch.bfloat16: 2**8, torch.float16: 2**11}[dtype]
    else:
        largest = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    for arguments in ((aten.random.default,), (getattr(aten.random, "from"), 0, None)):
        op, *bounds = arguments
        samples = apply_rule(op, zeros(dtype), *bounds).double()
        assert samples.min() >= 0 and samples.max() <= largest
        assert_mean(samples / largest, 0.5, 0.51)
        assert samples.max() > 0.98 * largest


BOUNDS = [(0, 2), (-3, 5), (10, 13), (-(2**40), 2**40 + 7), (0, 3 * 2**61), (-(2**63), 2**63 - 1), (5, 6)]


@pytest.mark.parametrize("bounds", BOUNDS)
def test_random_integers_lie_between_their_bounds(bounds: tuple[int, int]) -> None:
    start, stop = bounds
    samples = apply_rule(getattr(aten.random, "from"), zeros(torch.int64), start, stop)
    assert samples.min() >= start and samples.max() < stop
    relative = (samples.double() - start) / (stop - start)
    if stop - start < 100:
        counts = torch.bincount(samples - start, minlength=stop - start).double() / N
        assert (counts - 1 / (stop - start)).abs().max() < 0.02
    else:
        assert_distributed(relative, lambda x: x)


def test_the_smallest_start_without_an_end_means_every_integer() -> None:
    samples = apply_rule(getattr(aten.random, "from"), zeros(torch.int64), -(2**63), None).double()
    assert_distributed((samples + 2.0**63) / 2.0**64, lambda x: x)
    assert apply_rule(aten.random.to, zeros(torch.float32), 3).max() == 2


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_a_random_permutation_holds_every_number_once(n: int) -> None:
    order = apply_rule(aten.randperm.default, n)
    assert sorted(order.tolist()) == list(range(n))
    if n == 1000:
        assert (order == torch.arange(n)).sum() < 10


def test_every_order_of_three_is_as_likely_as_the_others() -> None:
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0, impl="rbg"), 600)
        drawn = jax.jit(lambda keys: jax.lax.map(lambda key: random.randperm(3, key=key), keys))(keys)
    orders = [tuple(order) for order in np.asarray(drawn).tolist()]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6 and min(counts) > 65


def test_rrelu_draws_one_slope_for_every_negative_value() -> None:
    x = torch.cat([torch.linspace(-4, 0, N), torch.tensor([2.0])])
    op = aten.rrelu_with_noise_functional.default
    out, noise = apply_rule(op, x, torch.zeros_like(x), 0.1, 0.3, True)
    torch.testing.assert_close(out, x * noise)
    assert noise[-1] == 1
    assert_distributed(noise[:-1], lambda slope: (slope - 0.1) / 0.2)
    check_rule(op, x, torch.full_like(x, 7.0), 0.1, 0.3, False)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_dropout_backward_of_whole_numbers_scales_in_floats(dtype: torch.dtype) -> None:
    gradient, mask = torch.tensor([0, 1, 1]).to(dtype), torch.tensor([True, True, False])
    check_rule(aten.native_dropout_backward.default, gradient, mask, 2.5)


RATES = (0.0, 1e-12, 1e-4, 0.1, 0.25, 0.3, 0.5, 0.7, 0.999, 1 - 1e-12, 1.0)
BOUNDS = ((0.0, 1.0), (-0.3, 0.4), (2.0, 2.0), (-1e-3, 1e30))
MOMENTS = ((0.0, 1.0), (1.0, 1.0), (0.3, 1.0), (0.0, 2.0), (0.3, 0.7), (-1.0, 0.0), (1e9, 1e-3))
SPREADS = [pair for pair in MOMENTS if pair[1]]


def _attention() -> list[torch.Tensor]:
    return [torch.linspace(-1, 1, 256).reshape(1, 2, 16, 8)] * 3


# Arguments of each operator that draws and takes a float: tensors of a dtype, then numbers.
PARAMETERS: dict[Any, Callable[[torch.dtype], list[tuple[Any, ...]]]] = {
    aten.bernoulli.p: lambda dtype: [(zeros(dtype), p) for p in RATES],
    aten.native_dropout.default: lambda dtype: [(zeros(dtype) + 1, p, True) for p in RATES],
    aten.uniform.default: lambda dtype: [(zeros(dtype), *each) for each in BOUNDS],
    aten.normal_functional.default: lambda dtype: [(zeros(dtype), *each) for each in MOMENTS],
    aten.normal.Tensor_float: lambda dtype: [(zeros(dtype), std) for _, std in MOMENTS],
    aten.normal.float_Tensor: lambda dtype: [(mean, zeros(dtype) + 0.7) for mean, _ in MOMENTS],
    aten.normal.float_float: lambda dtype: [(*each, [999]) for each in MOMENTS],
    aten.log_normal.default: lambda dtype: [(zeros(dtype), *each) for each in SPREADS],
    aten.cauchy.default: lambda dtype: [(zeros(dtype), *each) for each in SPREADS],
    aten.exponential.default: lambda dtype: [(zeros(dtype), rate) for rate in (1.0, 0.3, 3.0, 7.0, 1e-30)],
    aten.geometric.default: lambda dtype: [(zeros(dtype), p) for p in RATES if 0 < p < 1],
    aten.rrelu_with_noise_functional.default: lambda dtype: [
        (torch.linspace(-3, 3, 999).to(dtype), torch.ones(999, dtype=dtype), *each, training)
        for each in ((0.125, 1 / 3), (0.3, 0.3), (0.0, 1.0)) for training in (True, False)
    ],
    aten._scaled_dot_product_fused_attention_overrideable.default: lambda dtype: [
        (*(x.to(dtype) for x in _attention()), None, p) for p in (0.0, 0.1, 0.3, 0.5)
    ],
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", list(PARAMETERS), ids=str)
def test_a_parameter_gives_the_same_numbers_known_or_as_an_argument(op: Any, dtype: torch.dtype) -> None:
    for args in PARAMETERS[op](dtype):
        known, argument = (apply_rule(op, *args, seed=3, floats_are_arguments=each) for each in (False, True))
        for one, other in zip(jax.tree.leaves(known), jax.tree.leaves(argument), strict=True):
            assert one is other is None or torch.equal(one, other), args[1:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal_", "log_normal_", "cauchy_"])
@pytest.mark.parametrize("parameters", [(1.0, 1.0), (0.3, 1.0), (0.3, 0.7)], ids=str)
def test_a_line_that_was_run_with_other_parameters_draws_the_same(name: str, parameters: tuple[float, float]) -> None:
    """Compiled as programs of users are: LLVM joins products with sums."""

    def last(*calls: tuple[float, float]) -> torch.Tensor:
        for each in calls:
            torch.manual_seed(3)
            drawn = getattr(torch.empty(4096, device="xla"), name)(*each)
            drawn_at_once = torch.normal(*each, (4096,), device="xla")
            torch_xla.sync()
        return torch.stack([drawn, drawn_at_once]).cpu()

    assert torch.equal(last(parameters), last((5.0, 7.0), (6.0, 8.0), parameters))


@pytest.mark.slow
def test_a_line_that_was_run_with_another_deviation_draws_the_same_about_tensors() -> None:
    means = torch.full((53,), 2.0).to("xla")

    def last(*deviations: float) -> torch.Tensor:
        for each in deviations:
            torch.manual_seed(3)
            drawn = torch.normal(means, each)
            torch_xla.sync()
        return drawn.cpu()

    assert torch.equal(last(0.3), last(2.5, 0.3))


def test_a_mean_that_the_program_computes_is_rounded_before_it_is_added() -> None:
    base = (torch.arange(150) * 0.037 - 2.3).to("xla")

    def drawn() -> torch.Tensor:
        torch.manual_seed(3)
        return torch.normal(base * 0.7, base.abs() + 0.7)

    with eager_mode_context(True):
        apart = drawn().cpu()
    assert torch.equal(drawn().cpu(), apart)


def test_every_draw_that_takes_a_float_is_among_them() -> None:
    def takes_a_float(op: Any) -> bool:
        return not isinstance(op, str) and any(str(a.type) in ("float", "number") for a in op._schema.arguments)

    takers = {op for op, rule in all_rules().items() if rule.random and takes_a_float(op)}
    assert takers == set(PARAMETERS)


NARROW = {torch.bfloat16: np.uint8, torch.float16: np.uint16}


@pytest.mark.parametrize("op", [aten.uniform.default, aten.normal_functional.default], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_words_of_the_asked_size_are_the_same_numbers(op: Any, dtype: torch.dtype, request: Any) -> None:
    """XLA's generator gives the same bits in words of 32 and of 64; only the chip's own is another."""
    operand = zeros(dtype, 33, 7)
    cut = apply_rule(op, operand)
    request.getfixturevalue("forms_of_a_tpu")
    is_narrow = op is aten.uniform.default and dtype in NARROW
    assert torch.equal(apply_rule(op, operand), cut) is not is_narrow


@pytest.mark.usefixtures("forms_of_a_tpu")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_tpu_draws_no_wider_words_than_uniform_numbers_need(dtype: torch.dtype) -> None:
    key = jax.random.key(3, impl="rbg")
    with jax.enable_x64(True):
        like = np.dtype(getattr(jnp, str(dtype).removeprefix("torch.")))
        drawn = jax.make_jaxpr(lambda: random.uniform_numbers(key, (33, 7), like))()
        width = 8 * np.dtype(NARROW.get(dtype, f"u{like.itemsize}")).itemsize
        assert f":u{width}[33,7] = rng_bit_generator" in str(drawn)
        numbers = torch.from_numpy(np.array(random.uniform_numbers(key, (N,), like), np.float64))
    step = 2.0 ** -random.MANTISSA_BITS[like.name]
    assert numbers.min() >= 0 and numbers.max() < 1 and torch.equal(numbers, (numbers / step).round() * step)
    assert_mean(numbers, 0.5 - step / 2, 12**-0.5)
    if step > 1 / N:
        assert len(numbers.unique()) > 0.99 / step
    else:
        assert_distributed(numbers, lambda x: x)


@pytest.mark.usefixtures("forms_of_a_tpu")
@pytest.mark.parametrize("p", [0.1, 0.3, 1e-7])
def test_dropout_of_a_tpu_drops_its_share(p: float) -> None:
    kept = apply_rule(aten.native_dropout.default, torch.ones(N), p, True)[1]
    assert_mean(kept, 1 - p, math.sqrt(p * (1 - p)) + 1e-3)
