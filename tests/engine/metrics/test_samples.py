"""Metrics with samples: totals for all time, the latest values with their times."""

import threading
import time

import pytest

from torch_xla._engine.metrics import Unit, metric, samples, timed


def test_a_metric_is_visible_once_it_has_a_sample() -> None:
    mine = metric("Mine", Unit.SCALAR)
    assert samples.sampled() == {} and samples.data_of("Mine") is None
    mine.add(3)
    assert list(samples.sampled()) == ["Mine"]


def test_totals_and_samples_are_kept_with_the_time() -> None:
    before = time.time()
    mine = metric("Sizes", Unit.BYTES)
    mine.add(3)
    mine.add(4.5)
    data = mine.data()
    assert (data.total_samples, data.accumulator) == (2, 7.5)
    assert [value for _, value in data.samples] == [3.0, 4.5]
    assert before <= data.samples[0][0] <= data.samples[1][0] <= time.time()


def test_only_the_latest_samples_are_kept_but_all_are_counted() -> None:
    mine = metric("Mine", Unit.SCALAR)
    for value in range(2000):
        mine.add(value)
    data = mine.data()
    assert (data.total_samples, data.accumulator, len(data.samples)) == (2000, 1_999_000, 1024)
    assert data.samples[0][1] == 976 and data.samples[-1][1] == 1999


def test_the_number_of_samples_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_METRICS_SAMPLES", "2")
    mine = metric("Few", Unit.SCALAR)
    mine.clear()
    for value in range(5):
        mine.add(value)
    assert [value for _, value in mine.data().samples] == [3, 4]


def test_a_block_is_timed_in_nanoseconds() -> None:
    with timed("Sleep"):
        time.sleep(0.01)
    data = samples.data_of("Sleep")
    assert data is not None and 10_000_000 <= data.accumulator < 500_000_000_000


def test_a_block_that_raises_is_timed_too() -> None:
    with pytest.raises(KeyError), timed("Fails"):
        raise KeyError
    data = samples.data_of("Fails")
    assert data is not None and data.total_samples == 1


def test_blocks_nest() -> None:
    with timed("Block"), timed("Block"):
        pass
    data = samples.data_of("Block")
    assert data is not None and data.total_samples == 2


def test_a_metric_has_one_unit() -> None:
    metric("Size", Unit.BYTES)
    with pytest.raises(ValueError) as error:
        metric("Size")
    assert str(error.value) == "metric 'Size' is in BYTES, not in NANOSECONDS"


def test_clearing_keeps_the_objects_valid() -> None:
    mine = metric("Mine", Unit.SCALAR)
    mine.add(1)
    samples.clear()
    assert samples.sampled() == {}
    mine.add(5)
    assert mine.data().accumulator == 5


def test_threads_lose_no_sample() -> None:
    mine = metric("Mine", Unit.SCALAR)

    def work() -> None:
        for _ in range(2000):
            mine.add(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = mine.data()
    assert (data.total_samples, data.accumulator, len(data.samples)) == (8000, 8000, 1024)


def test_the_ring_keeps_the_order_and_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_METRICS_SAMPLES", "3")
    mine = metric("Ring", Unit.SCALAR)
    mine.clear()
    for count in range(1, 8):
        mine.add(count)
        assert [value for _, value in mine.data().samples] == [float(n) for n in range(max(1, count - 2), count + 1)]
