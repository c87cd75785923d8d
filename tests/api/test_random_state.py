"""The random state is an int: it can be read, set, kept and forked."""

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm


def draw() -> list[float]:
    return list(torch.rand(4, device="xla").tolist())


def test_a_state_that_is_set_is_the_state() -> None:
    xm.set_rng_state(5)
    assert xm.get_rng_state() == 5
    assert type(xm.get_rng_state()) is int


def test_the_same_state_gives_the_same_numbers() -> None:
    torch_xla.manual_seed(42)
    first, second = draw(), draw()
    assert first != second
    torch_xla.manual_seed(42, device="xla:0")
    assert [draw(), draw()] == [first, second]


def test_a_state_in_the_middle_can_be_restored() -> None:
    draw()
    state = xm.get_rng_state()
    first = draw()
    xm.set_rng_state(int(torch.tensor(state).item()), "xla:0")
    assert draw() == first


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, 2**64 + 3])
def test_every_int_is_a_state_that_fits_in_an_int64(seed: int) -> None:
    xm.set_rng_state(seed)
    assert 0 <= xm.get_rng_state() < 2**63
    assert len(draw()) == 4


def test_a_fork_leaves_the_state_as_it_was_also_after_an_error() -> None:
    xm.set_rng_state(9)
    with pytest.raises(KeyError), xm.fork_rng():
        draw()
        raise KeyError
    assert xm.get_rng_state() == 9
    with xm.fork_rng(device="xla:0", enabled=False):
        draw()
    assert xm.get_rng_state() != 9


def test_the_module_of_the_device_keeps_the_same_state() -> None:
    torch.manual_seed(3)
    state = xm.get_rng_state()
    first = draw()
    torch.manual_seed(3)
    assert xm.get_rng_state() == state
    assert draw() == first
