"""Step closures: calls queued until the end of the step, some of them for another thread."""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from weakref import WeakSet

from .. import config
from ..atomic import lock

Call = Callable[[], object]


class StepClosures:
    """The calls queued in the current step, in order."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        """Queue `call` for the end of this step."""
        self._calls.append(call)

    def run(self) -> None:
        """Make the calls queued so far; what they queue themselves belongs to the next step.

        If one raises, those behind it stay queued.
        """
        due, self._calls = self._calls, deque()
        try:
            for _ in range(len(due)):
                due.popleft()()
        finally:
            self._calls.extendleft(reversed(due))


class Background:
    """One thread that makes calls in order. At most `XLA_MAX_ASYNC_QUEUE` wait; a thread that adds more waits too.

    The interpreter does not exit before the last call has returned, and prints the exceptions that nothing raised.
    """

    def __init__(self) -> None:
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._worker: ThreadPoolExecutor | None = None
        self._room: threading.BoundedSemaphore | None = None
        self.started: deque[Future[object]] = deque()
        self._lock = lock()

    @property
    def busy(self) -> bool:
        """Return whether calls were started whose results were not looked at."""
        return bool(self.started)

    def start(self, call: Call) -> None:
        """Make `call` in the background, after those started before it; where no thread begins, at once."""
        with self._lock:
            if self._worker is None or self._room is None:
                self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="step-closures")
                self._room = threading.BoundedSemaphore(max(1, config.max_async_closures()))
                atexit.register(self.join)
            worker, room = self._worker, self._room
        room.acquire()
        try:
            future: Future[object] = worker.submit(call)
        except RuntimeError:  # no thread begins: in an exit function, or where the system has none left
            room.release()
            self.join()
            worker.shutdown(wait=False, cancel_futures=True)  # the pool may have queued it before it failed
            self._worker = None
            call()
            return
        future.add_done_callback(lambda _: room.release())
        self.started.append(future)

    def raise_failure(self) -> None:
        """Raise what the first failed call raised, once; returns at once if none has failed so far."""
        while self.started and self.started[0].done():
            self.started.popleft().result()

    def join(self) -> None:
        """Wait for every call started so far; raises what the first failed one raised."""
        while self.started:
            self.started.popleft().result()


_all: "WeakSet[Background]" = WeakSet()


def _after_fork() -> None:
    # A fork has none of the threads, so a lock that one of them held would never be released.
    for background in _all:
        background._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
