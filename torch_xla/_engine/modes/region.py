"""A region: a part of the program that is one graph, with a step's end before and after it."""

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from .. import compiler_options
from ..compiler_options import Option
from ..metrics import events, lines
from ..record import device as devices
from ..record import step
from ..record.device import Device
from . import eager

_current = threading.local()


def is_inside() -> bool:
    """Whether this thread is inside a region."""
    return getattr(_current, "depth", 0) > 0


class Region:
    """What holds inside one region, and what it has seen so far: a `with` block, or a decorator of a function.

    A region inside another is a part of it.
    """

    def __init__(
        self,
        name: str = "",
        full_graph: bool = False,
        most_graphs: int | None = None,
        options: Mapping[str, Option] | None = None,
    ) -> None:
        self.name = name
        self._options = options
        self._restore_options: Callable[[], None] | None = None
        self._full_graph = full_graph
        self._most_graphs = most_graphs
        self._graphs: set[Any] = set()
        self._device: Device | None = None  # of the thread inside, while its guard listens
        self._resume: Callable[[], None] | None = None

    def __enter__(self) -> "Region":
        depth = _current.depth = getattr(_current, "depth", 0) + 1
        if depth == 1:
            try:
                self._begin()
            except BaseException:
                _current.depth = 0
                raise
        return self

    def _begin(self) -> None:
        step.end_step()
        if self._options:
            self._restore_options = compiler_options.choose({**compiler_options.chosen(), **self._options})
        self._resume = eager.suspended()
        if self._full_graph:
            self._device = devices.device_at(devices.current_index())
            events.guard(self._refuse)

    def __exit__(self, kind: Any, *_: object) -> None:
        _current.depth -= 1
        if _current.depth == 0:
            try:
                if kind is None:
                    self.end()
            finally:
                self._unguard()
                if self._restore_options is not None:
                    self._restore_options()
                if self._resume is not None:
                    self._resume()

    def _unguard(self) -> None:
        if self._device is not None:
            self._device = None
            events.unguard(self._refuse)

    def end(self) -> None:
        """Starts what the region has recorded."""
        self._unguard()
        device = devices.device_at(devices.current_index())
        recorded = bool(device.tape.code)
        step.end_step()
        if recorded and self._most_graphs is not None:
            self._count(device, self._most_graphs)

    def _refuse(self, event: Any) -> None:
        if isinstance(event, events.Evaluation) and self._device is not None and event.device == self._device.index:
            raise RuntimeError(
                f"{self.name}: full_graph=True, and {lines.text(event.frames[0])} needs a value before the end of the "
                f"function. Return the tensor and look at it after the call, or use `torch.where` in the place of `if`."
            )

    def _count(self, device: Device, most: int) -> None:
        graph = device.last_schedule.cut.graph.code
        if graph in self._graphs:
            return
        if len(self._graphs) == most:
            raise RuntimeError(
                f"{self.name}: {most} different graphs were allowed, and this call recorded graph number {most + 1}: a "
                f"shape, a dtype or the path through the function has changed. Pad what varies in size, or allow more "
                f"graphs."
            )
        self._graphs.add(graph)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, each call of which is the region."""

        def compiled(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        self.name = self.name or getattr(function, "__qualname__", type(function).__name__)
        # A module has no name, and its attributes are not the function's.
        return functools.update_wrapper(compiled, function, updated=())
