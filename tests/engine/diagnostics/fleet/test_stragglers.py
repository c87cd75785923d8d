"""The slow process is named, with what it waited for."""

import json
import logging
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.diagnostics.fleet import goodput, stragglers
from torch_xla._engine.diagnostics.fleet.goodput import Goodput
from torch_xla._engine.diagnostics.fleet.stragglers import Pace
from torch_xla._engine.metrics import accounts

NOTHING = dict.fromkeys(accounts.NAMES, 0.0)


def spent(steps: int = 10, **seconds: float) -> Goodput:
    return Goodput(NOTHING | seconds, steps)


def pace(waited: float = 0.0, **seconds: float) -> Pace:
    found = stragglers.pace(spent(**seconds), waited)
    assert found is not None
    return found


def test_of_processes_with_steps_of_equal_length_the_one_that_waits_least_is_slow() -> None:
    fast = pace(waited=7.0, step=10.0)
    slow = pace(waited=1.0, step=8.0, input=2.0)
    found = stragglers.slowest({0: fast, 1: slow, 2: fast, 3: fast})
    assert found is not None and (found.process, found.account) == (1, accounts.STEP)
    assert str(found).startswith("Process 1 is slow: a step has 900 ms of its own, that of the median process 300 ms.")


@pytest.mark.parametrize(
    ("account", "words"),
    [
        ("input", "waiting for input"),
        ("compile", "compiling"),
        ("checkpoint", "saving checkpoints"),
        ("idle", "work without the device"),
    ],
)
def test_what_it_waited_for_is_named(account: str, words: str) -> None:
    found = stragglers.slowest({0: pace(step=5.0, communication=4.0), 1: pace(step=5.0, **{account: 4.0})})
    assert found is not None and found.process == 1
    assert f"It took 400 ms more for {words}." in str(found)


@given(st.lists(st.floats(0.95, 1.05), min_size=2, max_size=9))
def test_small_differences_are_no_fault(factors: list[float]) -> None:
    assert stragglers.slowest({index: pace(step=5.0 * factor) for index, factor in enumerate(factors)}) is None


@given(st.lists(st.floats(0.95, 1.05), min_size=2, max_size=9), st.data())
def test_a_large_difference_is_found_at_any_place(factors: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(factors) - 1))
    paces = {index: pace(step=5.0 * factor, input=3.0 * (index == place)) for index, factor in enumerate(factors)}
    found = stragglers.slowest(paces)
    assert found is not None and (found.process, found.account) == (place, accounts.INPUT)


def test_a_process_without_steps_has_no_pace() -> None:
    assert stragglers.pace(spent(steps=0, idle=60.0), 0.0) is None


def _own(waiting: float) -> dict[str, float]:
    found = stragglers.pace(spent(1, input=waiting), 0.0)
    assert found is not None
    return dict(found.own)


class Watch:
    """A watch over three processes. The third has stopped writing."""

    def __init__(self) -> None:
        self.written: dict[str, str] = {}

    def publish(self, key: str, value: str) -> None:
        self.written[key] = value

    def published(self, key: str) -> dict[int, str]:
        old = json.dumps([time.time() - 1000, 9.0, {accounts.STEP: 9.0}])
        slow = json.dumps([time.time(), 1.0, _own(0.9)])
        return {0: self.written[key], 1: slow, 2: old}


def test_process_0_names_the_slow_one_each_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch: Any = Watch()
    monkeypatch.setattr(stragglers.heartbeats, "watch", lambda: watch)
    monkeypatch.setattr(stragglers.waits_among_processes, "waited", stragglers._waited + 8.0)
    stragglers.compare(spent(step=10.0))
    assert "Process 1 is slow" in caplog.text and "waiting for input" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING
    assert json.loads(watch.written["pace"])[2][accounts.STEP] == pytest.approx(0.2)


def test_each_minute_it_is_asked_for_once() -> None:
    stragglers.begin()
    stragglers.begin()
    assert goodput.each_minute.count(stragglers.compare) == 1
