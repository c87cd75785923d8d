"""A region: a part of the program that becomes one graph, with the end of a step before and after it."""

import functools
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from .. import compiler_options
from ..compiler_options import Option
from ..metrics import events, user_lines
from ..step import end_of_step
from ..step.step import Schedule
from ..tensor import device as devices
from ..tensor.device import Device
from . import eager


class _Inside(threading.local):
    """Which region this thread is in."""

    outermost: "_Entered | None" = None


_inside = _Inside()


def is_inside() -> bool:
    """Return whether this thread is inside a region."""
    return _inside.outermost is not None and _entered() is not None


def _entered() -> "_Entered | None":
    """Return the outermost region that this thread is in, after leaving regions whose call is over.

    Python may raise an interrupt at the first instruction of `__exit__`. Then a user's `with` block stays entered, as
    for any context manager. A call of a compiled function ends with its frame.
    """
    entered = _inside.outermost
    if entered is None or entered.is_running():
        return entered
    entered.leave()
    return None


class _Entered:
    """A region that a thread is in, and what that has changed."""

    def __init__(self, region: "Region", frame: FrameType | None) -> None:
        self.region = region
        self.depth = 1
        self._frame = frame  # that of the call; `None` for a `with` block
        self._device: Device | None = None  # whose evaluations are refused
        self._undo: list[Callable[[], object]] = []  # each may be called again

    def begin(self) -> None:
        """End the step before, and apply the region's rules."""
        end_of_step.end_step(reset_scope=False)
        if self.region.options:
            before = compiler_options.chosen()
            self._undo.append(functools.partial(compiler_options.choose, before))
            compiler_options.choose({**before, **self.region.options})
        if eager.is_on():
            self._undo.append(functools.partial(eager.switch, True))
            eager.switch(False)
        if self.region.full_graph:
            self._device = devices.device_at(devices.current_index())
            self._undo.append(self.allow)
            events.guard(self._refuse)

    def leave(self) -> None:
        """Make all as it was."""
        while self._undo:
            self._undo[-1]()
            self._undo.pop()
        _inside.outermost = None

    def allow(self) -> None:
        """Let values be read again."""
        self._device = None
        events.unguard(self._refuse)

    def is_running(self) -> bool:
        """Return whether the call that entered the region goes on, in this thread."""
        if self._frame is None:
            return True
        running: FrameType | None = sys._getframe(1)
        while running is not None and running is not self._frame:
            running = running.f_back
        return running is not None

    def _refuse(self, event: object) -> None:
        if not isinstance(event, events.Evaluation) or self._device is None or event.device != self._device.index:
            return
        if _inside.outermost is self and _entered() is not self:
            return
        raise RuntimeError(
            f"{self.region.name}: full_graph=True, and {user_lines.text(event.frames[0])} needs a value before the end "
            f"of "
            f"the function. Return the tensor and look at it after the call, or use `torch.where` in the place of `if`."
        )


class Region:
    """The rules of a region, and the graphs it has seen so far: a `with` block, or a decorator of a function.

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
        self.options = options
        self.full_graph = full_graph
        self._most_graphs = most_graphs
        self._graphs: set[object] = set()

    def __enter__(self) -> "Region":
        if not self.enter(None) and _inside.outermost is not None:
            _inside.outermost.depth += 1
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        entered = _inside.outermost
        if entered is not None:
            entered.depth -= 1
            if entered.depth == 0:
                self.leave(kind is None)

    def enter(self, frame: FrameType | None) -> bool:
        """Begin a region that ends with `frame` at the latest; return false if there is one around it."""
        if is_inside():
            return False
        entered = _inside.outermost = _Entered(self, frame)
        try:
            entered.begin()
        except BaseException:
            entered.leave()
            raise
        return True

    def leave(self, succeeded: bool) -> None:
        """End what `enter` has begun."""
        entered = _inside.outermost
        try:
            if succeeded:
                self.end()
        finally:
            if entered is not None:
                entered.leave()

    def call(self, frame: FrameType) -> "_Call":
        """Return a context manager for a call of a function; `frame` is the call's frame."""
        return _Call(self, frame)

    def end(self) -> None:
        """Start what the region has recorded."""
        if _inside.outermost is not None:
            _inside.outermost.allow()
        device = devices.device_at(devices.current_index())
        recorded = bool(device.tape.code)
        end_of_step.end_step(reset_scope=False)
        if recorded and self._most_graphs is not None:
            self._count(device, self._most_graphs)

    def _count(self, device: Device, most: int) -> None:
        assert isinstance(device.last_schedule, Schedule)
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

    def __call__(self, function: Callable[..., object]) -> Callable[..., Any]:
        """Return `function` with each call as the region."""

        def compiled(*args: object, **kwargs: object) -> Any:
            with self.call(sys._getframe()):
                return function(*args, **kwargs)

        self.name = self.name or getattr(function, "__qualname__", type(function).__name__)
        # A module has no name, and its attributes are not the function's.
        return functools.update_wrapper(compiled, function, updated=())


class _Call:
    """One call of a compiled function."""

    def __init__(self, region: Region, frame: FrameType) -> None:
        self._region, self._frame = region, frame
        self._is_outermost = False

    def __enter__(self) -> None:
        self._is_outermost = self._region.enter(self._frame)

    def __exit__(self, kind: object, *_: object) -> None:
        if self._is_outermost:
            self._region.leave(kind is None)
