"""A distribution that there is not is refused as on the CPU, whatever was drawn before; any other is drawn from."""

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from torch_xla._engine.dispatch.ops.distributions import EXISTS

NAN, INF = float("nan"), float("inf")
NUMBERS = (-1.0, 0.0, 0.5, 1.0, 1.5, NAN, INF, -INF)
Draw = Callable[..., torch.Tensor]


def x(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((3,), 0.5, device=device).to(dtype)


# By the name of the operator: a draw, and the parameters it is tried with.
DRAWS: dict[str, tuple[Draw, list[tuple[float, ...]]]] = {
    "bernoulli.p": (lambda d, p: torch.bernoulli(x(d), p), [(n,) for n in NUMBERS]),
    "bernoulli_.float": (lambda d, p: x(d).bernoulli_(p), [(n,) for n in NUMBERS]),
    "cauchy_": (lambda d, m, s: x(d).cauchy_(m, s), list(product((0.0, NAN), NUMBERS))),
    "exponential_": (lambda d, p: x(d).exponential_(p), [(n,) for n in NUMBERS]),
    "geometric_": (lambda d, p: x(d).geometric_(p), [(n,) for n in NUMBERS]),
    "log_normal_": (lambda d, m, s: x(d).log_normal_(m, s), list(product((0.0, NAN), NUMBERS))),
    "cauchy": (lambda d, m, s: torch.ops.aten.cauchy(x(d), m, s), list(product((0.0, NAN), NUMBERS))),
    "exponential": (lambda d, p: torch.ops.aten.exponential(x(d), p), [(n,) for n in NUMBERS]),
    "geometric": (lambda d, p: torch.ops.aten.geometric(x(d), p), [(n,) for n in NUMBERS]),
    "log_normal": (lambda d, m, s: torch.ops.aten.log_normal(x(d), m, s), list(product((0.0, NAN), NUMBERS))),
    "normal_functional": (
        lambda d, m, s: torch.ops.aten.normal_functional(x(d), m, s),
        list(product((0.0, NAN), NUMBERS)),
    ),
    "native_dropout": (lambda d, p: torch.nn.functional.dropout(x(d), p), [(n,) for n in NUMBERS]),
    "normal.Tensor_float": (lambda d, s: torch.normal(x(d), s), [(n,) for n in NUMBERS]),
    "normal.float_float": (lambda d, m, s: torch.normal(m, s, (3,), device=d), list(product((0.0, NAN), NUMBERS))),
    "normal_": (lambda d, m, s: x(d).normal_(m, s), list(product((0.0, NAN), NUMBERS))),
    "uniform_": (lambda d, a, b: x(d).uniform_(a, b), [*product(NUMBERS, NUMBERS), (-3e38, 3e38)]),
    "random_.to": (
        lambda d, to, bits: x(d, (torch.int8, torch.bool, torch.int64, torch.uint8)[int(bits)]).random_(int(to)),
        [*product((-1, 0, 1, 2, 127, 128, 129, 256, 257), range(4))],
    ),
    "random_.from": (
        lambda d, a, b: x(d, torch.int8).random_(int(a), int(b)),
        [(0, 0), (1, 0), (-128, 127), (-129, 3), (5, 128), (5, 129), (-5, 5)],
    ),
    "multinomial": (
        lambda d, *weights: torch.multinomial(torch.tensor(weights).to(d), 2, True),
        [(1.0, 2.0), (0.0, 0.0), (-1.0, 2.0), (NAN, 1.0), (INF, 1.0), (0.0, 1.0)],
    ),
}


def test_every_operator_is_tried() -> None:
    assert DRAWS.keys() == EXISTS.keys()


def outcome(draw: Draw, device: str, parameters: tuple[float, ...]) -> tuple[type, str] | None:
    try:
        draw(device, *parameters)
    except Exception as error:
        return type(error), str(error).partition("\n")[0]
    return None


@pytest.mark.filterwarnings("ignore:.*truncated.*|.*out of bounds.*:UserWarning")
@pytest.mark.parametrize("name", DRAWS)
def test_what_the_cpu_refuses_is_refused_and_nothing_else(name: str) -> None:
    draw, tried = DRAWS[name]
    ours = {parameters: outcome(draw, "xla", parameters) for parameters in tried}
    assert ours == {parameters: outcome(draw, "cpu", parameters) for parameters in tried}


def test_weights_that_the_device_computed_are_not_waited_for() -> None:
    weights = torch.zeros(2, device="xla") - 1
    drawn = torch.multinomial(weights, 2, True)
    assert drawn.shape == (2,) and weights.untyped_storage().value.buffer is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.uint8], ids=str)
def test_integers_are_not_drawn_from_an_interval_of_floats(dtype: torch.dtype) -> None:
    calls: list[Callable[[str], torch.Tensor]] = [
        lambda d: torch.rand(3, dtype=dtype, device=d),
        lambda d: torch.rand_like(torch.ones(3, dtype=dtype, device=d)),
        lambda d: torch.ones(3, dtype=dtype, device=d).uniform_(),
    ]
    for call in calls:
        with pytest.raises(NotImplementedError) as expected:
            call("cpu")
        with pytest.raises(NotImplementedError) as found:
            call("xla")
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_a_dtype_that_the_cpu_draws_none_of_is_refused_in_its_words(dtype: torch.dtype) -> None:
    errors = []
    for device in ("cpu", "xla"):
        with pytest.raises(NotImplementedError) as found:
            torch.empty(3, dtype=dtype, device=device).uniform_(0.0, 1.0)
        errors.append(str(found.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bounds", [(-(2**60), 5), (0, 2**60), (2**60,)], ids=str)
def test_whole_numbers_that_are_no_floats_are_warned_of_as_on_the_cpu(dtype: torch.dtype, bounds: Any) -> None:
    said = []
    for device in ("cpu", "xla"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.empty(2, dtype=dtype, device=device).random_(*bounds)
        said.append([str(warning.message) for warning in caught])
    assert said[0] == said[1] and "is out of bounds" in said[0][0]


def _concentrations(device: str = "xla") -> torch.Tensor:
    return torch.linspace(0.1, 2, 24, device=device).reshape(4, 6)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.binomial(torch.full_like(_concentrations(), 10), _concentrations() / 2),
        lambda: torch._sample_dirichlet(_concentrations()),
        lambda: torch._standard_gamma(_concentrations()),
        lambda: torch.poisson(_concentrations()),
        lambda: torch.multinomial(_concentrations(), 3),
    ],
)
def test_tracing_a_draw_takes_no_numbers_of_the_generator(draw: Callable[[], torch.Tensor]) -> None:
    torch.manual_seed(3)
    expected = draw().cpu()
    torch._dynamo.reset()
    compiled = torch.compile(draw, backend="openxla")
    for _ in range(2):
        torch.manual_seed(3)
        assert torch.equal(compiled().cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.bool], ids=str)
def test_the_first_integers_of_a_dtype_are_drawn_from_a_generator_of_the_device(dtype: torch.dtype) -> None:
    # The CPU is asked about the dtype, with a generator of its own.
    ours, theirs = torch.Generator(device="xla").manual_seed(3), torch.Generator()
    untouched = theirs.get_state()
    draws: list[Callable[[torch.Generator], torch.Tensor]] = [
        lambda g: torch.randint(0, 2, (99,), dtype=dtype, device="xla", generator=g),
        lambda g: torch.randint(2, (99,), dtype=dtype, device="xla", generator=g),
        lambda g: torch.randint(0, 2, (99,), generator=g, out=torch.empty(0, dtype=dtype, device="xla")),
        lambda g: torch.randint_like(torch.empty(99, dtype=dtype, device="xla"), 2, generator=g),
        lambda g: torch.empty(99, dtype=dtype, device="xla").bernoulli_(0.5, generator=g),
    ]
    for draw in draws:
        with pytest.raises(RuntimeError, match="Expected a 'xla' device type for generator"):
            draw(theirs)
        assert draw(ours).float().mean().item() not in (0, 1)
    assert torch.equal(theirs.get_state(), untouched)
