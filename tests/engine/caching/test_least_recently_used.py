"""The least recently used entry leaves a table first."""

import pytest
import torch

import torch_xla
from torch_xla._engine.caching import least_recently_used
from torch_xla._engine.metrics import counters
from torch_xla._engine.step import schedule
from torch_xla._engine.step.schedule import clear_schedules
from torch_xla.experimental import eager_mode_context


class Used:
    def __init__(self) -> None:
        self.used = least_recently_used.now()


def test_the_oldest_leave_an_eighth_at_a_time() -> None:
    table = {number: Used() for number in range(17)}
    table[0].used = least_recently_used.now()
    least_recently_used.trim(table, 17)
    assert len(table) == 17
    least_recently_used.trim(table, 16)
    assert sorted(table) == [0, *range(4, 17)]


def test_a_step_that_runs_on_stays_while_others_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", "4")
    clear_schedules()
    weight = torch.ones(3, device="xla")
    torch_xla.sync()

    def step() -> None:
        weight.add_(1.0)
        torch_xla.sync()

    for size in range(4, 60):
        step()
        torch.empty(size, device="xla").sin()
        torch_xla.sync()
    kept = len(schedule._schedules)
    counters.clear()
    step()
    assert 4 < kept <= 16 and not counters.value_of("UncachedCompile") and weight.tolist() == [58.0] * 3


def test_an_operation_that_runs_on_keeps_its_shortcut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", "1")
    clear_schedules()
    with eager_mode_context(True):
        x = torch.ones(3, device="xla")
        for _ in range(3):
            x.sin()
        (key,) = [key for key in schedule.shortcuts if "sin" in str(key)] or list(schedule.shortcuts)[-1:]
        for size in range(4, 12):
            torch.ones(size, device="xla").exp()
            x.sin()
        assert key in schedule.shortcuts and len(schedule.shortcuts) <= 4
