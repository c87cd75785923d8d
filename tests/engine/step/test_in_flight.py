"""How many programs run at once, and who waits for whom."""

from collections import deque

import jax
import pytest
import torch

import torch_xla
from torch_xla._engine.step import in_flight
from torch_xla._engine.tensor.device import device_at

MIB = 1 << 20


class End:
    """Stands for an output of a program."""

    def __init__(self, ready: bool = False, deleted: bool = False) -> None:
        self.ready, self.deleted, self.waited_for = ready, deleted, False
        self.error: Exception | None = None

    def is_deleted(self) -> bool:
        return self.deleted

    def is_ready(self) -> bool:
        return self.ready

    def block_until_ready(self) -> None:
        self.waited_for = True
        if self.error is not None:
            raise self.error


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> "deque[tuple[int, list[End]]]":
    """The programs that run on the first device, none at first."""
    flight = in_flight.Flight()
    monkeypatch.setitem(in_flight.by_target, device_at(0).target, flight)
    return flight.running  # type: ignore[return-value]


def test_a_program_waits_for_the_oldest_until_there_is_room(running: "deque[tuple[int, list[End]]]") -> None:
    ends = [End() for _ in range(3)]
    running.extend((20 * MIB, [end]) for end in ends)
    in_flight.free_memory(running, 4 * MIB)
    assert len(running) == 3
    in_flight.free_memory(running, 10 * MIB)
    assert [end.waited_for for end in ends] == [True, False, False] and len(running) == 2
    in_flight.free_memory(running, in_flight.AT_ONCE + 1)  # which runs alone
    assert all(end.waited_for for end in ends) and not running


def test_what_has_ended_or_was_given_away_is_not_waited_for(running: "deque[tuple[int, list[End]]]") -> None:
    ends = [End(ready=True), End(deleted=True)]
    running.extend((60 * MIB, [end]) for end in ends)
    in_flight.free_memory(running, 60 * MIB)
    assert not running and not any(end.waited_for for end in ends)


def test_a_program_that_failed_keeps_no_other_waiting(running: "deque[tuple[int, list[End]]]") -> None:
    failed = End()
    failed.error = jax.errors.JaxRuntimeError("INTERNAL: it failed")
    running.append((60 * MIB, [failed]))
    in_flight.free_memory(running, 60 * MIB)
    assert failed.waited_for and not running


def test_room_is_waited_for_without_the_lock_as_far_as_programs_have_begun(
    running: "deque[tuple[int, list[End]]]",
) -> None:
    x = torch.ones(12 * MIB).to("xla")
    kept = x.exp()  # 48 MiB
    torch_xla.sync()
    program = device_at(0).last_schedule.program  # type: ignore[union-attr]
    running.clear()
    ended = End()
    running.extend([(40 * MIB, [ended]), (40 * MIB, [])])  # the second is about to begin in another thread
    assert not in_flight.has_memory(program)
    in_flight.wait_for_memory(program)
    assert ended.waited_for and len(running) == 1 and not in_flight.has_memory(program)
    running.clear()
    assert in_flight.has_memory(program) and kept[0].item() > 2


def test_only_what_needs_memory_is_counted(running: "deque[tuple[int, list[End]]]") -> None:
    for count, programs in ((8, 0), (1 << 20, 1)):
        x = torch.ones(count).to("xla")
        running.clear()
        y = x.neg()
        torch_xla.sync()
        assert len(running) == programs
        if programs:
            assert running[0][0] == 4 * count  # its result
        assert torch.equal(y.cpu(), -torch.ones(count))
