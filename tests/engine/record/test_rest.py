"""What a read leaves undone is on another tape afterwards, with all that belongs to it."""

import torch

import torch_xla
from torch_xla._engine.graph.graph import decode
from torch_xla._engine.record.device import device_at
from torch_xla._engine.record.scopes import close_scope, open_scope
from torch_xla._engine.record.storage import value_of


def test_operations_numbers_and_lines_that_are_left_are_recorded_anew() -> None:
    torch_xla.sync()
    x = torch.arange(3.0).to("xla")
    read, left = x * 4.25, x + 2.75
    line = "test_operations_numbers_and_lines_that_are_left_are_recorded_anew"
    before = device_at(0).tape
    assert read.tolist() == [0, 4.25, 8.5]
    tape = device_at(0).tape
    assert tape is not before and before.ended and before.code == [] and not before.values
    assert tape.is_rest and tape.numbers == [2.75]
    _, (operation,), _ = decode(tape.code)
    assert str(operation.plan.op) == "aten.add.Tensor" and tape.all_lines(tape.code)[operation.position][2] == line
    assert value_of(left).tape is tape and left.tolist() == [2.75, 3.75, 4.75]


def test_a_whole_tape_leaves_nothing() -> None:
    x = torch.arange(3.0, device="xla")
    before = device_at(0).tape
    torch_xla.sync()
    tape = device_at(0).tape
    assert before.ended and not tape.code and not tape.is_rest and not tape.numbers
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
    end = middle.neg()
    middle.tolist()
    inputs, operations, _ = decode(device_at(0).tape.code)
    assert len(inputs) == 1 and [str(each.plan.op) for each in operations] == ["aten.neg.default"]
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
