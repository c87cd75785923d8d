"""In C++ a generator of ours belongs to our device."""

from collections.abc import Callable

import pytest
import torch

from torch_xla._engine.compat.abi import generator_device

HOST = torch.full((3,), 0.5)


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: torch.rand(3, generator=g),
        lambda g: torch.randn(3, generator=g),
        lambda g: torch.randint(9, (3,), generator=g),
        lambda g: torch.randperm(3, generator=g),
        lambda g: torch.bernoulli(HOST, generator=g),
        lambda g: torch.poisson(HOST, generator=g),
        lambda g: torch.multinomial(HOST, 2, generator=g),
        lambda g: torch.normal(HOST, HOST, generator=g),
        lambda g: torch.empty(3).uniform_(generator=g),
        lambda g: torch.empty(3).exponential_(generator=g),
    ],
)
@pytest.mark.parametrize(
    "make", [lambda: torch.Generator("xla"), lambda: torch.xla.default_generators[0]], ids=["own", "of the device"]
)
def test_draws_of_the_cpu_refuse_a_generator_of_the_device(
    make: Callable[[], torch.Generator], draw: Callable[[torch.Generator], torch.Tensor]
) -> None:
    generator = make()
    before = generator.get_state()
    with pytest.raises(RuntimeError, match="Expected a 'cpu' .*but found 'xla"):
        draw(generator)
    assert generator.get_state().equal(before)


def test_generators_of_the_cpu_draw_as_before() -> None:
    expected = torch.rand(3, generator=torch.Generator().manual_seed(1))
    torch.Generator("xla")
    assert torch.rand(3, generator=torch.Generator().manual_seed(1)).equal(expected)


@pytest.mark.parametrize(
    ("name", "damage", "found"),
    [
        ("_WORDS", 2, "the dispatch keys of one of the CPU are at 0 places"),
        ("_OF_THE_CPU", 0x0300, "in front of the dispatch keys of one of the CPU is 0xff00"),
        ("device_word", lambda index: index << 8, "one that was given a device answers cpu:0"),
    ],
)
def test_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, damage: object, found: str) -> None:
    generator = torch.Generator().manual_seed(1)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(generator_device, name, damage)
    with pytest.raises(RuntimeError, match=f"generators of torch .* differ .*: {found}"):
        generator_device.belong_to(generator, 0)
    assert generator.device == torch.device("cpu")
    assert torch.rand(3, generator=generator).equal(expected)
