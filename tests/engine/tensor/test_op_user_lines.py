"""The user's line is kept where a tape leaves the path that it took last time."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import optim

import torch_xla
from torch_xla._engine.ir.tape import Tape
from torch_xla._engine.metrics.user_lines import OptimizersLine
from torch_xla._engine.tensor.device import device_at
from torch_xla._engine.tensor.op_user_lines import note_line


def test_the_line_is_that_of_who_called_and_the_path_is_left() -> None:
    tape = Tape(["plan"], {0: ("old.py", 1, "f")})
    note_line(tape, 3)
    here = inspect.currentframe()
    assert here is not None
    assert tape.lines == {3: (__file__, here.f_lineno - 3, "test_the_line_is_that_of_who_called_and_the_path_is_left")}
    assert tape.expected is None


def test_the_line_of_a_call_that_an_interrupt_kept_off_the_tape_is_no_line_of_it() -> None:
    one, other = torch.ones(2, device="xla"), torch.ones(3, device="xla")

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        torch_xla.sync()
        other.mul_(2)
        torch_xla.sync()
        return one * 3, other

    step()
    tape = device_at(0).tape
    note_line(tape, len(tape.code))
    lines = tape.all_lines(tape.code)
    assert max(lines) < len(tape.code)
    tripled, doubled = step()  # this tape is expected to be the interrupted one
    assert (doubled + 1).tolist() == [5, 5, 5] and tripled.tolist() == [3, 3]
    torch_xla.sync()


class Doubling(optim.Optimizer):
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.data.mul_(2.0)


def of_pytorch(parameter: torch.Tensor) -> optim.Optimizer:
    parameter.grad = torch.ones_like(parameter)
    return optim.SGD([parameter], lr=0.5)


@pytest.mark.parametrize("make", [lambda p: Doubling([p], {}), of_pytorch], ids=["one of the user's", "of PyTorch"])
def test_lines_of_an_optimizer_are_told_apart(make: Callable[[torch.Tensor], optim.Optimizer]) -> None:
    parameter = torch.nn.Parameter(torch.ones(3, device="xla"))
    optimizer, lines = make(parameter), device_at(0).tape.lines
    before = len(lines)
    parameter * 3.5
    optimizer.step()
    found = list(lines.values())[before:]
    assert [isinstance(line, OptimizersLine) for line in found] == [False, True]
    assert all(line[0] == __file__ for line in found)
