"""The records of a step: what they say of a tape, and what replaces a tape."""

import pytest
import torch

import torch_xla
from torch_xla._engine.atomic import run_through
from torch_xla._engine.ir.tape import Tape
from torch_xla._engine.step.schedule import PASSES
from torch_xla._engine.step.step import Changed, end_of, tape_after, unchanged
from torch_xla._engine.tensor.device import device_at


def test_the_passes_are_one_list_in_files_of_their_own() -> None:
    assert [each.__module__.rpartition(".")[2] for each in PASSES] == [
        "liveness", "partition", "fuse", "donation", "growing_sizes", "schedule",
    ]  # fmt: skip


def test_a_tape_that_grew_is_refused_when_it_is_run_through_and_not_before() -> None:
    torch_xla.sync()
    x = torch.ones(3).to("xla") + 1
    tape = device_at(0).tape
    same = unchanged(tape, len(tape.code))
    run_through(same)
    late = unchanged(tape, len(tape.code))
    y = x * 2
    with pytest.raises(Changed):
        run_through(late)
    assert y.tolist() == [4, 4, 4]


def test_a_schedule_knows_its_lines_and_what_followed_it() -> None:
    x = torch.ones(3).to("xla")
    for _ in range(3):
        y = (x + 1).sin()
        torch_xla.sync()
    schedule = device_at(0).last_schedule
    assert len(schedule.source_lines()) == 2 and all(line[0] == __file__ for line in schedule.source_lines())
    assert schedule.followed_by is schedule and schedule.serves(schedule.live)
    assert tape_after(schedule, device_at(0)).expected is schedule.code
    assert tape_after(None, device_at(0)).expected is None and y.shape == (3,)


def test_a_tape_that_was_evaluated_holds_nothing() -> None:
    class Ordinal:
        tape = Tape()

    device, following = Ordinal(), Tape()
    ended = device.tape
    ended.code.append("entry")
    run_through(end_of(ended, following, device))  # type: ignore[arg-type]
    assert device.tape is following and ended.ended and not ended.code and not ended.values
