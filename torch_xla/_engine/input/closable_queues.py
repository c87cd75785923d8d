"""Queues between threads that can be closed: waiting threads then continue, so none is left behind."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from ..atomic import lock


class QueueClosed(RuntimeError):
    """Something was put into a queue that takes nothing any more."""


class QueueBase(ABC):
    """The base of the queues, with a bound on the number of items and two ways to close.

    `close_write()` is for the producer: no more items come, and the waiting items can still be read. `close()` is for
    either side: the waiting items are dropped.
    """

    def __init__(self, maxsize: int = 1024) -> None:
        if maxsize < 1:
            raise ValueError(f"the size of a queue must be at least 1; got {maxsize}")
        self._maxsize = maxsize
        self._closed = False
        self._written = False  # nothing more comes
        # Reentrant: the thread that holds it may collect garbage, and a finalizer may close this queue.
        self._lock = lock()
        self._came = threading.Condition(self._lock)
        self._left = threading.Condition(self._lock)

    def max_size(self) -> int:
        """Return the number of items that may wait before `put` blocks."""
        return self._maxsize

    def close_write(self) -> None:
        """End the queue: `put` raises from now on, `get` gives `None` once nothing is left."""
        with self._lock:
            self._written = True
            self._notify_all()

    def close(self) -> None:
        """Drop the waiting items. From now on, also in calls that wait, `put` raises and `get` returns `None`."""
        with self._lock:
            self._closed = self._written = True
            self._clear()
            self._notify_all()

    @abstractmethod
    def _clear(self) -> None:
        """Drop every item."""

    def _notify_all(self) -> None:
        self._came.notify_all()
        self._left.notify_all()

    def _wait_for_room(self, is_full: Callable[[], bool]) -> None:
        self._left.wait_for(lambda: self._written or not is_full())
        if self._written:
            raise QueueClosed("the queue is closed: nothing can be put into it")


class Queue(QueueBase):
    """First in, first out, for any number of threads on both sides."""

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: deque[object] = deque()

    def put(self, item: object) -> None:
        """Add `item`; wait while the queue is full. Raise `QueueClosed`, a `RuntimeError`, once it is closed."""
        with self._lock:
            self._wait_for_room(lambda: len(self._items) >= self._maxsize)
            self._items.append(item)
            self._came.notify()

    def get(self) -> Any:
        """Return the oldest item; waits while there is none. `None` once the queue is closed and nothing is left."""
        with self._lock:
            self._came.wait_for(lambda: self._items or self._written)
            if not self._items:
                return None
            self._left.notify()
            return self._items.popleft()

    def _clear(self) -> None:
        self._items.clear()


class KeydQueue(QueueBase):
    """Items that are asked for by a key, in any order, for any number of threads on both sides."""

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: dict[Hashable, object] = {}
        self._wanted: dict[Hashable, int] = {}  # key → how many threads wait for it

    def put(self, key: Hashable, item: object) -> None:
        """Add `item` under `key`; wait while the queue is full, unless a reader waits for this key.

        Raises `QueueClosed`, a `RuntimeError`, once the queue is closed.
        """
        with self._lock:
            # A reader that waits for a key frees no room, so an item that a reader waits for must always be accepted.
            self._wait_for_room(lambda: len(self._items) >= self._maxsize and key not in self._wanted)
            if key in self._items:
                raise RuntimeError(f"the queue has an item under the key {key!r} already")
            self._items[key] = item
            self._came.notify_all()

    def get(self, key: Hashable) -> Any:
        """Take the item under `key`; wait until there is one. Return `None` if the queue is closed before it comes."""
        with self._lock:
            self._wanted[key] = self._wanted.get(key, 0) + 1
            self._left.notify_all()
            try:
                self._came.wait_for(lambda: key in self._items or self._written)
            finally:
                self._wanted[key] -= 1
                if not self._wanted[key]:
                    del self._wanted[key]
            if key not in self._items:
                return None
            self._left.notify_all()
            return self._items.pop(key)

    def _clear(self) -> None:
        self._items.clear()
