"""Queues that can be closed."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from torch_xla._engine.input.closable_queues import KeydQueue, Queue, QueueBase

CLOSED = "the queue is closed: nothing can be put into it"


def in_thread(fn: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Runs `fn` in a thread; the list takes what it returns or raises."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(fn())
        except RuntimeError as error:
            results.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def assert_waits(thread: threading.Thread) -> None:
    time.sleep(0.02)
    assert thread.is_alive()


def test_items_come_out_in_the_order_they_went_in() -> None:
    queue = Queue()
    for item in range(5):
        queue.put(item)
    assert [queue.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert queue.max_size() == 1024


@pytest.mark.parametrize("make", [Queue, KeydQueue])
def test_a_queue_without_room_is_refused(make: type[QueueBase]) -> None:
    with pytest.raises(ValueError, match="the size of a queue must be at least 1; got 0"):
        make(maxsize=0)


def test_putting_waits_for_room_and_getting_for_an_item() -> None:
    queue = Queue(maxsize=1)
    getter, got = in_thread(queue.get)
    assert_waits(getter)
    queue.put("a")
    getter.join(60)
    assert got == ["a"]
    queue.put("b")
    putter, _ = in_thread(lambda: queue.put("c"))
    assert_waits(putter)
    assert queue.get() == "b"
    putter.join(60)
    assert queue.get() == "c"


def test_after_the_last_item_a_queue_closed_for_writing_gives_none() -> None:
    queue = Queue()
    queue.put(1)
    queue.close_write()
    with pytest.raises(RuntimeError, match=CLOSED):
        queue.put(2)
    assert [queue.get(), queue.get(), queue.get()] == [1, None, None]


def test_a_closed_queue_drops_its_items_and_lets_everybody_go() -> None:
    queue = Queue(maxsize=1)
    getters = [in_thread(queue.get) for _ in range(2)]
    queue.close()
    for thread, got in getters:
        thread.join(60)
        assert got == [None]
    queue = Queue(maxsize=1)
    queue.put(1)
    putters = [in_thread(lambda: queue.put(2)) for _ in range(2)]
    assert_waits(putters[0][0])
    queue.close()
    for thread, got in putters:
        thread.join(60)
        assert got == [CLOSED]
    assert queue.get() is None


def test_many_threads_lose_and_double_nothing() -> None:
    queue = Queue(maxsize=3)
    putters = [in_thread(lambda n=n: [queue.put((n, i)) for i in range(200)]) for n in range(3)]  # type: ignore[misc]
    getters = [in_thread(lambda: list(iter(queue.get, None))) for _ in range(3)]
    for thread, _ in putters:
        thread.join(60)
    queue.close_write()
    for thread, _ in getters:
        thread.join(60)
    received = [item for _, [items] in getters for item in items]
    assert sorted(received) == [(n, i) for n in range(3) for i in range(200)]
    for _, [items] in getters:
        for n in range(3):
            assert [i for m, i in items if m == n] == sorted(i for m, i in items if m == n)


def test_items_are_got_by_key_in_any_order() -> None:
    queue = KeydQueue()
    for key in "abc":
        queue.put(key, key.upper())
    assert [queue.get(key) for key in "cab"] == ["C", "A", "B"]
    with pytest.raises(RuntimeError, match="the queue has an item under the key 'x' already"):
        for _ in range(2):
            queue.put("x", 1)


def test_getting_waits_for_its_own_key() -> None:
    queue = KeydQueue()
    getter, got = in_thread(lambda: queue.get(2))
    queue.put(1, "one")
    assert_waits(getter)
    queue.put(2, "two")
    getter.join(60)
    assert got == ["two"]
    assert queue.get(1) == "one"


def test_a_full_queue_takes_the_item_that_somebody_waits_for() -> None:
    queue = KeydQueue(maxsize=1)
    queue.put(1, "one")
    putter, _ = in_thread(lambda: queue.put(2, "two"))
    assert_waits(putter)
    assert queue.get(2) == "two"
    putter.join(60)
    assert queue.get(1) == "one"


def test_a_closed_queue_gives_none_for_keys_that_did_not_come() -> None:
    queue = KeydQueue()
    getter, got = in_thread(lambda: queue.get("never"))
    queue.put("here", 1)
    assert_waits(getter)
    queue.close_write()
    getter.join(60)
    assert got == [None]
    assert queue.get("here") == 1
    with pytest.raises(RuntimeError, match=CLOSED):
        queue.put("late", 2)
    queue = KeydQueue()
    queue.put("here", 1)
    queue.close()
    assert queue.get("here") is None
