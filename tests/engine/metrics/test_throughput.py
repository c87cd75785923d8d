"""Samples per second, smoothed between the readings."""

from collections.abc import Callable

import pytest

from torch_xla._engine.metrics import throughput
from torch_xla._engine.metrics.throughput import RateTracker


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def test_the_first_reading_is_the_rate_itself(wait: Callable[[float], None]) -> None:
    tracker = RateTracker()
    tracker.add(32)
    tracker.add(32)
    wait(2)
    assert tracker.rate() == 32


def test_later_readings_keep_a_part_of_the_earlier_ones(wait: Callable[[float], None]) -> None:
    tracker = RateTracker(smooth_factor=0.25)
    tracker.add(10)
    wait(1)
    assert tracker.rate() == 10
    tracker.add(20)
    wait(1)
    assert tracker.rate() == 0.25 * 10 + 0.75 * 20
    assert tracker.global_rate() == 15


def test_no_time_has_no_rate(wait: Callable[[float], None]) -> None:
    tracker = RateTracker()
    tracker.add(1)
    assert tracker.rate() == tracker.global_rate() == 0


def test_a_factor_that_is_no_part_is_refused() -> None:
    with pytest.raises(ValueError, match="^smooth_factor is 1.5; it must be between 0 and 1$"):
        RateTracker(1.5)


def test_the_factor_may_be_a_setting(wait: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATE_TRACKER_SMOOTHING", "0")
    tracker = RateTracker()
    for count in (10, 20):
        tracker.add(count)
        wait(1)
        assert tracker.rate() == count
    monkeypatch.setenv("RATE_TRACKER_SMOOTHING", "2")
    with pytest.raises(ValueError, match="^RATE_TRACKER_SMOOTHING is 2; it must be between 0 and 1[.]$"):
        RateTracker()
