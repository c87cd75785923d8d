"""Who runs closures: at once, or in a thread of their own.

`xm.add_step_closure` is what programs use. These classes are for those that run closures themselves.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from .._engine.step.step_closures import Background


class ClosureHandler(ABC):
    """Something that runs closures."""

    @abstractmethod
    def run(self, closure: Callable[[], object]) -> None:
        """Runs `closure`, now or later."""

    def run_all(self, closures: Iterable[Callable[[], object]]) -> None:
        """Runs `closures` in order."""
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Runs closures in order in a thread of its own; `max_queue_size` may wait, then `run` waits too.

    What a closure raised is raised by the next `run`. The interpreter does not exit before the last closure returned.

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
        """Nothing to do: the thread starts with the first closure."""

    def run(self, closure: Callable[[], object]) -> None:
        """Runs `closure` in the background, after those given before."""
        self._worker.raise_failure()
        self._room.acquire()
        self._worker.start(lambda: self._run(closure))

    def _run(self, closure: Callable[[], object]) -> None:
        self._room.release()
        closure()

    def join(self) -> None:
        """Waits for every closure; raises what the first failed one raised."""
        self._worker.join()
