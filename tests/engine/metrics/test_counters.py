"""Counters: visible once they counted, exact with threads, cheap."""

import gc
import sys
import threading
import timeit
from collections.abc import Iterator

import pytest

from torch_xla._engine.metrics import count, counter, counters


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def no_finalizers() -> Iterator[None]:
    """Collect no garbage: finalizers of earlier tests count, too."""
    gc.collect()
    gc.disable()
    counters.clear()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_finalizers")
def test_a_counter_is_visible_once_it_counted_something() -> None:
    mine = counter("Mine")
    assert counters.names() == [] and counters.value_of("Mine") is None
    mine.value += 2
    assert counters.names() == ["Mine"] and counters.value_of("Mine") == 2


def test_a_name_has_one_counter() -> None:
    count("Mine")
    counter("Mine").value += 1
    count("Mine", 3)
    assert counter("Mine") is counter("Mine")
    assert counters.value_of("Mine") == 5


@pytest.mark.usefixtures("no_finalizers")
def test_names_are_sorted() -> None:
    for name in ("b", "aten::a", "C"):
        count(name)
    assert counters.names() == ["C", "aten::a", "b"]


def test_clearing_keeps_the_objects_valid() -> None:
    mine = counter("Mine")
    mine.value += 1
    counters.clear()
    assert counters.value_of("Mine") is None
    mine.value += 1
    assert counters.value_of("Mine") == 1


@pytest.mark.usefixtures("frequent_switches")
def test_threads_lose_no_count() -> None:
    kept = counter("Kept")

    def work() -> None:
        for _ in range(20_000):
            count("Named")
            kept.value += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counters.value_of("Named"), kept.value) == (80_000, 80_000)


def test_counting_costs_little_beside_recording_an_operation() -> None:
    # Recording one takes some microseconds; measured here: 0.06 by name, 0.02 by object. The bound leaves room for
    # a busy machine.
    mine = counter("Mine")
    by_name = min(timeit.repeat(lambda: count("Mine"), number=10_000, repeat=5)) / 10_000
    assert by_name < 1e-6
    assert mine.value == 50_000
