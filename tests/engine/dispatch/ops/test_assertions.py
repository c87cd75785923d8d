"""Assertions on values raise at the next wait, with their message, and do not wait themselves."""

import pytest
import torch

import torch_xla
from torch_xla._engine.metrics import counters
from torch_xla._engine.tensor.device import device_at
from torch_xla.experimental import eager_mode_context


def computed(*numbers: float) -> torch.Tensor:
    return torch.tensor([*numbers, *[0.0] * 100]).to("xla")[: len(numbers)] + 0


@pytest.mark.parametrize("value", [1.0, -0.5, float("nan"), float("inf")])
def test_what_is_not_zero_holds(value: float) -> None:
    torch._assert_async(torch.tensor(value))
    torch._assert_async(computed(value), "must hold")
    torch_xla.sync(wait=True)


def test_a_zero_is_told_at_the_next_wait_with_its_message_and_once() -> None:
    torch_xla.sync(wait=True)
    x = computed(0.0)
    torch._assert_async(x, "x must not be zero")
    assert device_at(0).tape.code  # nothing was waited for
    with pytest.raises(RuntimeError, match=r"^x must not be zero\n  asserted at .*test_assertions.py"):
        torch_xla.sync(wait=True)
    torch_xla.sync(wait=True)
    torch._assert_async(computed(0.0))
    with pytest.raises(RuntimeError, match="^Expected Tensor with single nonzero value, but got zero"):
        torch_xla.sync(wait=True)


def test_what_the_host_knows_is_told_at_once() -> None:
    with pytest.raises(RuntimeError, match="^known$"):
        torch._assert_async(torch.tensor([0]).to("xla"), "known")


def test_in_eager_mode_it_runs_when_it_is_called() -> None:
    x = computed(0.0)
    with eager_mode_context(True):
        torch._assert_async(x, "eager")
        assert not device_at(0).tape.code
        with pytest.raises(RuntimeError, match="^eager"):
            x.tolist()


@pytest.mark.parametrize("size", [(2,), (0,)], ids=str)
def test_one_value_alone_can_be_asserted(size: tuple[int, ...]) -> None:
    told = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as refusal:
            torch._assert_async(torch.ones(size, device=device))
        told.append(str(refusal.value).partition("\n")[0])
    assert told[0] == told[1]


def test_another_message_is_no_other_program_and_a_token_is_handed_on() -> None:
    for step in range(4):
        token = torch.ops.aten._functional_assert_async.msg(computed(1.0), f"step {step}", torch.ones(1, device="xla"))
        torch_xla.sync(wait=True)
        assert token.tolist() == [1]
    assert (counters.value_of("UncachedCompile") or 0) <= 2
