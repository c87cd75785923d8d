"""Operations that a read does not need are on another tape afterwards, with everything that belongs to them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from tests.support.pending import prolonged
from torch_xla._engine.ir.graph import decode
from torch_xla._engine.ir.tape import ALL
from torch_xla._engine.step.named_scopes import close_scope, open_scope
from torch_xla._engine.tensor.device import device_at
from torch_xla._engine.tensor.storage import value_of


def test_operations_numbers_and_lines_that_are_left_are_recorded_anew() -> None:
    torch_xla.sync()
    x = torch.arange(3.0).to("xla")
    read, left = x * 4.25, x + 2.75
    after = prolonged(left)
    line = "test_operations_numbers_and_lines_that_are_left_are_recorded_anew"
    before = device_at(0).tape
    assert read.tolist() == [0, 4.25, 8.5]
    tape = device_at(0).tape
    assert tape is not before and before.ended and before.code == [] and not before.values
    assert tape.rest and tape.numbers[0] == 2.75
    _, (operation, *_), _ = decode(tape.code)
    assert str(operation.plan.op) == "aten.add.Tensor" and tape.all_lines(tape.code)[operation.position][2] == line
    assert value_of(left).tape is tape and left.tolist() == after.tolist() == [2.75, 3.75, 4.75]


def test_a_whole_tape_leaves_nothing() -> None:
    x = torch.arange(3.0, device="xla")
    before = device_at(0).tape
    torch_xla.sync()
    tape = device_at(0).tape
    assert before.ended and not tape.code and not tape.rest and not tape.numbers
    assert value_of(x).buffer is not None


def test_draws_that_are_left_are_those_that_were_recorded() -> None:
    def pair(reads: bool) -> list[float]:
        torch.manual_seed(7)
        first, second = torch.rand(2, device="xla"), torch.rand(2, device="xla")
        if reads:
            first.tolist()
        return second.tolist()

    assert pair(True) == pair(False)


def test_values_that_are_read_and_needed_later_are_inputs() -> None:
    torch_xla.sync()
    x = torch.arange(3.0).to("xla")
    middle = x.exp()
    end = prolonged(middle.neg())
    middle.tolist()
    inputs, operations, _ = decode(device_at(0).tape.code)
    assert len(inputs) == 1 and str(operations[0].plan.op) == "aten.neg.default"
    assert end.tolist() == (-torch.arange(3.0).exp()).tolist()


def test_open_scopes_stay_open() -> None:
    open_scope("outer")
    try:
        x = torch.arange(3.0, device="xla")
        left = x + 1.25
        (x * 2).tolist()
        tape = device_at(0).tape
        assert tape.scopes[-1][1] == ("outer",)
        later = x - 3
    finally:
        close_scope()
    assert tape.scopes[-1][1] == () and left.tolist() == [1.25, 2.25, 3.25] and later.tolist() == [-3, -2, -1]


def counted(name: str) -> int:
    return met.counter_value(name) or 0


def trained(optimizer: Callable[[Any], torch.optim.Optimizer], device: str, steps: int) -> list[float]:
    """The losses of a loop that reads each and never ends its step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(device)
    optimizing, losses = optimizer(model.parameters()), []
    for x in torch.randn(steps, 6, 4):
        loss = (model(x.to(device)) ** 2).mean()
        optimizing.zero_grad()
        loss.backward()
        optimizing.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "optimizer", [lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.AdamW(p, 0.1)], ids=["SGD", "AdamW"]
)
def test_a_loop_that_reads_and_never_ends_its_step_trains_by_few_programs(
    optimizer: Callable[[Any], torch.optim.Optimizer],
) -> None:
    torch_xla.sync()
    compiled = counted("UncachedCompile")
    assert trained(optimizer, "xla", 12) == pytest.approx(trained(optimizer, "cpu", 12), rel=1e-4)
    assert counted("UncachedCompile") - compiled <= 5
    assert len(device_at(0).tape.code) < 200
    torch_xla.sync()


def test_what_nobody_reads_does_not_pile_up_behind_reads() -> None:
    torch_xla.sync()
    x, kept, compiled, lengths = torch.ones(2, device="xla"), [], list[int](), list[int]()
    for number in range(40):
        kept.append(x * number)  # not read yet
        assert (x + number).tolist() == [number + 1.0] * 2
        compiled.append(counted("UncachedCompile"))
        lengths.append(len(device_at(0).tape.code))
    assert not any(lengths[1:]) and compiled[-1] == compiled[3]
    assert torch.stack(kept).tolist() == [[float(number)] * 2 for number in range(40)]
    torch_xla.sync()


def test_the_end_of_a_step_ends_that_reads_run_all() -> None:
    torch_xla.sync()
    x = torch.arange(3.0).to("xla")
    kept = []
    for number in range(3):
        kept.append(prolonged(x * number))
        (x + number).tolist()
    assert device_at(0).tape.rest == ALL
    torch_xla.sync()
    kept.append(x - 5)
    torch_xla.sync()
    left = prolonged(x - 7)
    (x + 9).tolist()
    assert value_of(left).buffer is None
    torch_xla.sync()


def test_a_loop_that_reads_runs_the_same_programs_when_it_is_called_again() -> None:
    def generate(prompt: torch.Tensor) -> list[float]:
        x, mask = prompt.to("xla"), torch.ones_like(prompt).to("xla")
        positions = mask.cumsum(0) - 1
        if not (mask == 1).all():  # does not need the positions
            x = x + 1
        scale = mask * 3
        if (x < 0).any():  # needs neither
            x = -x
        for _ in range(4):
            x = (x + positions).sin() * scale
            bool(x.sum() > 100)
        return x.tolist()

    torch_xla.sync()
    first = generate(torch.arange(5.0))
    compiled = counted("UncachedCompile")
    assert generate(torch.arange(5.0)) == first and counted("UncachedCompile") == compiled
    torch_xla.sync()


def test_two_reads_in_one_step_leave_the_step_as_it_is() -> None:
    torch_xla.sync()
    x = torch.arange(3.0).to("xla")
    end = prolonged(x.exp().neg())
    for number in range(2):
        (x + number).tolist()
    assert value_of(end).buffer is None and device_at(0).tape.rest
    torch_xla.sync()
    assert value_of(end).buffer is not None and not device_at(0).tape.rest
