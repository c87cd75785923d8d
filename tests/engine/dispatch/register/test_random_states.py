"""`torch.xla` has the seeds, states and generators that `torch.cuda` has."""

from typing import Any

import pytest
import torch

import torch_xla

SIZE = 6
module: Any = torch.get_device_module("xla")


def draw(generator: torch.Generator | None = None) -> torch.Tensor:
    return torch.rand(SIZE, device="xla", generator=generator).cpu()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(11)


def test_the_default_generator_has_the_state_of_the_device() -> None:
    generator = module.default_generators[0]
    assert isinstance(generator, torch.Generator) and generator.device == torch.device("xla:0")
    assert len(module.default_generators) == module.device_count() == len(list(module.default_generators))
    assert generator is module.default_generators[-1 * len(module.default_generators)]
    assert generator in module.default_generators[:]
    first, second = draw(), draw()
    torch.manual_seed(11)
    assert torch.equal(draw(generator), first) and torch.equal(draw(), second)
    generator.manual_seed(11)
    assert torch.equal(draw(), first) and module.initial_seed() == generator.initial_seed() == 11
    assert torch.equal(generator.get_state(), module.get_rng_state())
    assert generator.get_state().shape == (16,)
    with pytest.raises(IndexError):
        module.default_generators[99]


def test_a_clone_of_the_default_generator_is_one_of_its_own() -> None:
    generator = module.default_generators[0]
    clone = generator.clone_state()
    expected = draw()
    assert torch.equal(draw(clone), expected)


@pytest.mark.parametrize("name", ["seed", "seed_all"])
def test_a_seed_that_nobody_chose_is_another_each_time(name: str) -> None:
    drawn = []
    for _ in range(2):
        assert getattr(module, name)() is None
        assert module.initial_seed() == module.default_generators[0].initial_seed()
        drawn.append(draw())
        torch.manual_seed(module.initial_seed())
        assert torch.equal(draw(), drawn[-1])
    assert not torch.equal(*drawn)


def test_states_of_all_ordinals_are_restored() -> None:
    states = module.get_rng_state_all()
    assert [state.dtype for state in states] == [torch.uint8] * module.device_count()
    first = draw()
    draw()
    module.set_rng_state_all(states)
    assert torch.equal(draw(), first)
    module.set_rng_state_all(tuple(states))
    assert torch.equal(draw(), first)


def test_a_state_of_nothing_is_refused() -> None:
    for state in (0, None, torch.zeros(3, dtype=torch.uint8), torch.zeros(16)):
        with pytest.raises(TypeError, match="an xla random state is"):
            module.set_rng_state(state)
    with pytest.raises(RuntimeError, match="does not exist"):
        module.set_rng_state_all([module.get_rng_state()] * (module.device_count() + 1))


def test_a_replayed_and_a_compiled_function_follow_the_seed() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(SIZE, device="xla")

    x = torch.zeros(SIZE, device="xla")
    expected = noisy(x).cpu()
    for function in (torch_xla.compile(noisy, replay=True), torch.compile(noisy, backend="openxla")):
        for _ in range(3):
            module.default_generators[0].manual_seed(11)
            assert torch.equal(function(x).cpu(), expected)


@pytest.mark.parametrize("seed", [torch.xla.manual_seed, torch.xla.manual_seed_all])
def test_a_seed_is_what_int_takes(seed: Any) -> None:
    draws = []
    for number in (7, 7.0, "7", torch.tensor(7)):
        seed(number)
        draws.append(torch.rand(3, device="xla").tolist())
    assert draws == [draws[0]] * 4
    with pytest.raises(TypeError):
        seed(None)
    with pytest.raises(ValueError):
        seed("xla:0")
