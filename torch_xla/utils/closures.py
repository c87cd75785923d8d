"""Handlers that run closures: at once, or in a background thread.

Programs call `xm.add_step_closure`. These classes are for code that runs closures itself.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from .._engine.step import BackgroundClosures as Background


class ClosureHandler(ABC):
    """An object that runs closures."""

    @abstractmethod
    def run(self, closure: Callable[[], object]) -> None:
        """Run `closure`, now or later."""

    def run_all(self, closures: Iterable[Callable[[], object]]) -> None:
        """Run `closures` in order."""
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Run closures in order in a background thread. `run` blocks while `max_queue_size` closures wait.

    The next `run` raises an exception that a closure raised. The interpreter exits after the last closure has returned.

    >>> from torch_xla.utils.closures import AsyncClosureHandler
    >>> done = []
    >>> handler = AsyncClosureHandler()
    >>> handler.run_all([lambda: done.append(1), lambda: done.append(2)])
    >>> handler.join()
    >>> done
    [1, 2]
    """

    def __init__(self, max_queue_size: int = 100) -> None:
        self._room = threading.BoundedSemaphore(max_queue_size)
        self._worker = Background()

    def start_event_loop(self) -> None:
        """Do nothing: the thread starts with the first closure."""

    def run(self, closure: Callable[[], object]) -> None:
        """Run `closure` in the background, after the earlier closures."""
        self._worker.raise_failure()
        self._room.acquire()
        self._worker.start(lambda: self._run(closure))

    def _run(self, closure: Callable[[], object]) -> None:
        self._room.release()
        closure()

    def join(self) -> None:
        """Wait for every closure, and raise the exception of the first closure that failed."""
        self._worker.join()
