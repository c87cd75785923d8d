"""`torch.Generator(device="xla")`: a sequence of its own for draws on the device."""

import copy
import gc
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla

Draw = Callable[[torch.Generator | None], torch.Tensor]


def full() -> torch.Tensor:
    return torch.full((30,), 0.5, device="xla")


DRAWS: dict[str, Draw] = {
    "rand": lambda g: torch.rand(3, generator=g, device="xla"),
    "randn": lambda g: torch.randn(2, 2, generator=g, device="xla"),
    "randint": lambda g: torch.randint(0, 1000, (3,), generator=g, device="xla"),
    "randperm": lambda g: torch.randperm(20, generator=g, device="xla"),
    "normal": lambda g: torch.normal(0.0, 1.0, (3,), generator=g, device="xla"),
    "normal_": lambda g: torch.empty(3, device="xla").normal_(generator=g),
    "uniform_": lambda g: torch.empty(3, device="xla").uniform_(generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((30,), 0.5, device="xla"), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(50, device="xla"), 5, generator=g),
    "randn_like": lambda g: torch.randn_like(full(), generator=g),
    "randint_like": lambda g: torch.randint_like(full(), 99_999, generator=g),
    "bernoulli_": lambda g: full().bernoulli_(full(), generator=g),
    "exponential_": lambda g: full().exponential_(generator=g),
    "geometric_": lambda g: full().geometric_(0.1, generator=g),
    "cauchy_": lambda g: full().cauchy_(generator=g),
    "log_normal_": lambda g: full().log_normal_(generator=g),
    "random_": lambda g: full().random_(generator=g),
    "normal of tensors": lambda g: torch.normal(full(), full(), generator=g),
    "poisson": lambda g: torch.poisson(full() * 9, g),
    "binomial": lambda g: torch.binomial(full() * 100, full(), generator=g),
    "gamma": lambda g: torch._standard_gamma(full(), g),
    "dirichlet": lambda g: torch._sample_dirichlet(full(), g),
    "poisson, out=": lambda g: torch.ops.aten.poisson.out(full() * 9, g, out=full()),
    "rrelu": lambda g: torch.rrelu(-full(), 0.1, 0.9, True, g),
    "rrelu_": lambda g: torch.rrelu_(-full(), 0.1, 0.9, True, g),
    "rrelu_with_noise": lambda g: torch._C._nn.rrelu_with_noise(-full(), full(), 0.1, 0.9, True, g),
    "rrelu_with_noise_": lambda g: torch._C._nn.rrelu_with_noise_(-full(), full(), 0.1, 0.9, True, g),
    "rrelu, functional": lambda g: torch.ops.aten.rrelu_with_noise_functional(-full(), full(), 0.1, 0.9, True, g)[0],
    "init": lambda g: torch.nn.init.xavier_uniform_(torch.empty(3, 3, device="xla"), generator=g),
}


@pytest.mark.parametrize("draw", list(DRAWS.values()), ids=list(DRAWS))
def test_its_seed_gives_what_the_seed_of_the_device_gives(draw: Draw) -> None:
    torch.manual_seed(7)
    expected = draw(None)
    torch.manual_seed(8)
    before = torch.xla.get_rng_state()
    generator = torch.Generator(device="xla").manual_seed(7)
    assert draw(generator).equal(expected)
    assert not draw(generator).equal(expected), "the second draw is another"
    assert torch.xla.get_rng_state().equal(before), "the sequence of the device goes on where it was"


def test_a_state_is_found_again() -> None:
    generator = torch.Generator("xla")
    generator.manual_seed(3)
    torch.rand(2, generator=generator, device="xla")
    state = generator.get_state()
    expected = torch.rand(2, generator=generator, device="xla")
    others = [
        generator.clone_state().set_state(state),
        torch.Generator(device="xla:0").set_state(state),
        pickle.loads(pickle.dumps(torch.Generator("xla").set_state(state))),
        copy.deepcopy(torch.Generator("xla").set_state(state)),
    ]
    other = torch.Generator("xla")
    other.graphsafe_set_state(others[0])
    for each in (*others, other):
        assert each.initial_seed() == 3
        assert torch.rand(2, generator=each, device="xla").equal(expected)
    file = io.BytesIO()
    torch.save({"generator": state}, file)
    file.seek(0)
    assert torch.load(file)["generator"].equal(state)


def test_it_is_a_generator_of_the_device() -> None:
    generator = torch.Generator(device=torch.device("xla"))
    assert isinstance(generator, torch.Generator)
    assert generator.device == torch.device("xla", 0)
    assert generator.initial_seed() == torch.Generator().initial_seed(), "unless it is told, as those of the CPU"
    assert generator.seed() == generator.initial_seed()
    assert repr(generator) == "<torch.Generator of xla:0>"
    with pytest.raises(TypeError, match="16 bytes"):
        generator.set_state(torch.Generator().get_state())
    with pytest.raises(RuntimeError, match="xla:99 does not exist"):
        torch.Generator(device="xla:99")


def test_generators_of_other_devices_are_as_they_were() -> None:
    class Mine(torch.Generator):
        pass

    assert type(torch.Generator()) is type(torch.Generator("cpu")) is torch.Generator
    assert type(Mine()) is Mine
    assert isinstance(torch.default_generator, torch.Generator)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(1))
    assert torch.rand(3, generator=torch.Generator(device="cpu").manual_seed(1)).equal(expected)
    with pytest.raises(RuntimeError, match="device type"):
        torch.Generator("nothing")
    script = torch.jit.annotations.try_ann_to_type(torch.Generator, None)
    assert str(script) == "Generator"


def test_one_that_is_gone_is_no_other() -> None:
    torch.Generator("xla").manual_seed(1)
    gc.collect()
    for on_host in [torch.Generator().manual_seed(5) for _ in range(50)]:
        with pytest.raises(RuntimeError, match="Expected a 'xla' device type for generator but found 'cpu'"):
            torch.rand(3, generator=on_host, device="xla")


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("draw", list(DRAWS.values()), ids=list(DRAWS))
def test_a_draw_refuses_a_generator_of_the_host(draw: Draw, eager: bool) -> None:
    generator = torch.Generator()
    before, kept = torch.xla.get_rng_state(), generator.get_state()
    with torch_xla.experimental.eager_mode_context(eager):
        with pytest.raises(
            RuntimeError, match="Expected a 'xla' device type for generator but found 'cpu': aten.*Make"
        ):
            draw(generator)
    assert torch.xla.get_rng_state().equal(before) and generator.get_state().equal(kept)


@pytest.mark.parametrize("state", [0, torch.zeros(16, dtype=torch.uint8), torch.Generator()], ids=type)
def test_only_a_generator_of_the_device_gives_its_state(state: Any) -> None:
    with pytest.raises(TypeError, match="expects a generator of an xla device, got (int|Tensor|one of cpu)"):
        torch.Generator("xla").graphsafe_set_state(state)
