"""The history is kept once, from the import on, and can be ended."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

import torch_xla
import torch_xla.debug as debug
from torch_xla._engine import config
from torch_xla._engine.diagnostics.report import history
from torch_xla._engine.metrics import events
from torch_xla._engine.metrics.observers import observers


@pytest.fixture(autouse=True)
def a_fresh_history() -> Iterator[None]:
    torch_xla.sync(wait=True)
    debug.keep_history(True)
    debug.clear_history()
    yield
    debug.keep_history(True)


def times_it_listens() -> int:
    return [listener for listener, *_ in events._listeners].count(history._listen)


def test_it_listens_once_from_the_import_on_and_not_closely() -> None:
    assert history.is_kept() and times_it_listens() == 1
    assert not events.closely and events.watched
    debug.keep_history(True)
    assert times_it_listens() == 1


def test_ended_nothing_is_told_and_nothing_forgotten() -> None:
    torch.ones(3, device="xla").add(1).tolist()
    reads = [cost.reads for cost in debug.sync_costs()]
    debug.keep_history(False)
    debug.keep_history(False)
    assert times_it_listens() == 0 and not events.watched and observers.name_buffers is None
    torch.ones(3, device="xla").add(1).tolist()
    torch_xla.sync()
    assert [cost.reads for cost in debug.sync_costs()] == reads == [1]


def test_a_setting_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.history()
    monkeypatch.setenv("XLA_HISTORY", "0")
    assert not config.history()


def test_steps_and_reads_are_kept_in_their_order() -> None:
    for _ in range(3):
        kept = torch.ones(3, device="xla") + 1
        torch_xla.sync()
    kept.tolist()
    steps = history.steps()
    assert [step.number - steps[0].number for step in steps] == [0, 1, 2]
    for before, after in pairwise(steps):
        assert after.start >= before.start + before.seconds
    assert [type(event).__name__ for event in history.recent] == ["Transfer"]
    assert history.memory_used and history.memory_used[0][1] > 0


def test_executions_are_kept_without_their_programs_while_somebody_watches_closely() -> None:
    def ignore(event: events.Event) -> None:
        return None

    events.listen(ignore)
    try:
        (torch.ones(3, device="xla") + 1).tolist()
    finally:
        events.unlisten(ignore)
    started = [event for event in history.recent if isinstance(event, history.PastExecution)]
    assert [event.operations for event in started] == [2]
    [cost] = debug.sync_costs()
    assert (cost.reads, cost.forced) == (1, 1)  # an evaluation that is reported separately counts once
