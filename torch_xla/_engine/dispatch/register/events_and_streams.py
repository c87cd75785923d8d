"""Streams and events of `xla`: `torch.xla.Stream`, and what `torch.Stream("xla")` and `torch.Event("xla")` make.

An XLA device runs its programs in one order, so all streams of a device are one.
"""

import time
from typing import Any

import torch

from ...compat.names import torch as private
from ...step import in_flight, is_capturing
from ...step.sync import sync_device
from ...tensor import device as devices
from ...tensor.device_names import index_in_use
from ...tensor.device_names import index_or_current as _index


def synchronize(device: Any = None) -> None:
    """Compute everything recorded on the device and wait for it."""
    if devices.existing_devices():  # PyTorch's profiler asks all devices that there are, used or not
        sync_device(devices.device_at(_index(device)), wait=True)


class Stream(torch.Stream):
    """An order of execution. An XLA device has one, so streams are the same and need no waiting for each other.

    PyTorch's own class, which its C++ takes without looking, as it does events.
    """

    device_type = "xla"  # type: ignore[assignment]

    def __new__(cls, device: Any = None, priority: int = 0, **_: object) -> "Stream":
        index = _index(device)
        devices.device_at(index)  # it is in use from here on
        return cls._of(index)

    @classmethod
    def _of(cls, index: int) -> "Stream":
        devices.take_name()
        return super().__new__(cls, device=torch.device("xla", index))

    def synchronize(self) -> None:
        """Wait for everything started so far."""
        synchronize(self.device)

    def query(self) -> bool:
        """Return whether the device has computed everything recorded, which is started if it was not."""
        event = Event(self.device)
        event.record()
        return event.query()

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority: the one stream has one."""
        return 0, 0

    priority = 0

    def is_capturing(self) -> bool:
        """Return whether operations on its device are being captured as a graph."""
        return is_capturing() and is_capturing(devices.device_at(self.device.index))

    def wait_stream(self, stream: torch.Stream) -> None:
        """Do nothing: there is one stream."""

    def wait_event(self, event: torch.Event) -> None:
        """Do nothing: there is one stream."""

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Return an event at this point."""
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Event(torch.Event):
    """A point in the one stream."""

    def __new__(
        cls,
        device: Any = None,
        enable_timing: bool = False,
        interprocess: bool = False,
        **_: object,
    ) -> "Event":
        if interprocess:
            raise NotImplementedError(f"Event({device!r}, interprocess=True): {_OF_ONE_PROCESS}.")
        index = _index(device)
        devices.device_at(index)
        return super().__new__(cls, device=torch.device("xla", index))

    def __init__(self, device: Any = None, enable_timing: bool = False, **_: object) -> None:
        self._index = _index(device)
        self._takes_time = enable_timing
        self._reached: float | None = None
        # Small outputs of the programs before this point, until they are known to have ended.
        self._ends: list[Any] = []

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Return the device of the stream."""
        return torch.device("xla", self._index)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Mark this point, and start the recorded operations. An event with timing waits for them, too."""
        device = devices.device_at(self._index)
        if is_capturing(device):
            return  # it marks a point in the graph, which the host does not see
        sync_device(device, wait=self._takes_time)
        self._ends = in_flight.ends_of(device.target.device)
        self._reached = time.perf_counter()

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Return the milliseconds that its device took from this point to the other."""
        events: Any = self, end_event
        if not all(event._takes_time for event in events):
            raise ValueError("elapsed_time: both events must be made with `enable_timing=True`.")
        begin, end = (event._reached for event in events)
        if begin is None or end is None:
            raise ValueError("elapsed_time: both events must be recorded before.")
        return float(end - begin) * 1e3

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Do nothing: there is one stream."""

    def synchronize(self) -> None:
        """Wait for everything started so far on its device."""
        in_flight.wait([devices.device_at(self._index).target.device])

    def query(self) -> bool:
        """Return whether the device has come to this point; true for an event that was not recorded."""
        if not in_flight.have_ended(self._ends):
            return False
        self._ends = []
        return True

    def ipc_handle(self) -> bytes:
        """Refuse to show the event to another process."""
        raise NotImplementedError(f"Event.ipc_handle: {_OF_ONE_PROCESS}.")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> "Event":
        """Refuse the event of another process."""
        raise NotImplementedError(f"Event.from_ipc_handle: {_OF_ONE_PROCESS}.")


def current_stream(device: Any = None) -> Stream:
    """Return the one stream. Checkpoints of CPU programs ask for it too, so the device is not in use by that."""
    return Stream._of(index_in_use(device))


def default_stream(device: Any = None) -> Stream:
    """Return the one stream."""
    return current_stream(device)


def set_stream(stream: Stream) -> None:
    """Do nothing: there is one stream."""
    _check_stream("set_stream", stream)


class StreamContext:
    """A `with` block in a stream: there is one."""

    def __init__(self, stream: torch.Stream | None) -> None:
        _check_stream("stream", stream)
        self.stream = stream

    def __enter__(self) -> torch.Stream | None:
        return self.stream

    def __exit__(self, *_: object) -> None:
        return None


def stream(stream: torch.Stream | None) -> StreamContext:
    """Return a `with` block in that stream: there is one."""
    return StreamContext(stream)


def _check_stream(called: str, stream: object) -> None:
    if not isinstance(stream, torch.Stream | None):
        raise TypeError(f"torch.xla.{called}: expected a torch.Stream or None, got {stream!r}")


def stream_for(device: Any = None, **options: Any) -> Stream | None:
    """Return what `torch.Stream(device)` makes on `xla`; `None` for other devices and streams given by number."""
    return None if "stream_id" in options or not _is_ours(device) else Stream(device, **options)


def event_for(device: Any = None, **options: Any) -> Event | None:
    """Return what `torch.Event(device)` makes on `xla`; `None` for another device."""
    return Event(device, **options) if _is_ours(device) else None


_OF_ONE_PROCESS = "an event of xla is known to its own process only. Use torch.distributed.barrier()"


def _is_ours(device: Any) -> bool:
    if device is None:  # then PyTorch means the accelerator
        return private.backend_name() == "xla"
    return isinstance(device, int | str | torch.device) and torch.device(device).type == "xla"


# The members of `torch.xla` in this module.
MEMBERS: dict[str, object] = {
    thing.__name__: thing
    for thing in (
        Event, Stream, StreamContext, current_stream, default_stream, set_stream, stream, synchronize,
    )
}  # fmt: skip
