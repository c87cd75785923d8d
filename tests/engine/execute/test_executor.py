"""How many programs run at once."""

import gc
from collections import deque

import jax
import pytest
import torch

import torch_xla
from torch_xla._engine.execute import executor
from torch_xla._engine.record.device import device_at

MIB = 1 << 20


class End:
    """Stands for an output of a program."""

    def __init__(self, ready: bool = False, deleted: bool = False) -> None:
        self.ready, self.deleted, self.waited_for = ready, deleted, False

    def is_deleted(self) -> bool:
        return self.deleted

    def is_ready(self) -> bool:
        return self.ready

    def block_until_ready(self) -> None:
        self.waited_for = True


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> "deque[tuple[int, list[End]]]":
    """The programs that run on the first device, none at first."""
    flight = executor._Flight()
    monkeypatch.setattr(executor, "_flights", {device_at(0).target: flight})
    return flight.running  # type: ignore[return-value]


def test_a_program_waits_for_the_oldest_until_there_is_room(running: "deque[tuple[int, list[End]]]") -> None:
    ends = [End() for _ in range(3)]
    running.extend((20 * MIB, [end]) for end in ends)
    executor._make_room(running, 4 * MIB)
    assert len(running) == 3
    executor._make_room(running, 10 * MIB)
    assert [end.waited_for for end in ends] == [True, False, False] and len(running) == 2
    executor._make_room(running, executor._AT_ONCE + 1)  # which runs alone
    assert all(end.waited_for for end in ends) and not running


def test_what_has_ended_or_was_given_away_is_not_waited_for(running: "deque[tuple[int, list[End]]]") -> None:
    ends = [End(ready=True), End(deleted=True)]
    running.extend((60 * MIB, [end]) for end in ends)
    executor._make_room(running, 60 * MIB)
    assert not running and not any(end.waited_for for end in ends)


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


def test_large_results_that_nobody_holds_are_let_go() -> None:
    x = torch.ones(1 << 19).to("xla")
    size = x.nbytes

    def living() -> int:
        return sum(array.nbytes == size and not array.is_deleted() for array in jax.live_arrays())

    torch_xla.sync(wait=True)
    gc.collect()  # what earlier tests left would go meanwhile
    before = living()
    for _ in range(12):
        y = x * 2  # the only result, so it tells when its program has ended
        torch_xla.sync()
        assert y.shape == x.shape
        del y
        for array in jax.live_arrays():
            if not array.is_deleted():
                array.block_until_ready()
    assert living() <= before + 2
    torch_xla.sync(wait=True)
    assert living() == before
