"""Make `xla` a device of PyTorch: the name, the hooks, the guard and the module `torch.xla`."""

import time
import types
from contextlib import contextmanager
from typing import Any

import torch

from ...compat.abi.device_guard import (
    answer_for_current_device,
    answer_for_device_count,
    confirm_layout,
    let_exceptions_pass,
    register,
)
from ...compat.names import torch as private
from ...runtime import host_malloc, platform
from ...step import executor
from ...step.sync import sync_device
from ...tensor import device as devices
from ...tensor.device_names import index_or_current as _index
from .deferred_name import is_wanted, wait_for_first_use
from .random_states import MEMBERS
from .torch_accelerator import answer, native


class _Hooks(private.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, device_index: int) -> bool:
        return platform.is_started()


class _Guard(private.DeviceGuard):
    def type_(self) -> Any:
        return private.privateuse1_device_type


_keep: list[Any] = []


def is_installed() -> bool:
    """Whether `xla` is a device of this process already."""
    return bool(_keep)


def claim_device_name() -> None:
    """Makes "xla" the name of PyTorch's PrivateUse1 device, now or when it is first used (`deferred_name`).

    Raises `ImportError` if another package has it.
    """
    taken = private.backend_name()
    if taken not in ("privateuseone", "xla"):
        raise ImportError(
            f"torch_xla needs PyTorch's PrivateUse1 device, and another package already uses it for {taken!r} "
            f"(torch_tpu does). Uninstall that package, or start Python with TORCH_DEVICE_BACKEND_AUTOLOAD=0 so that "
            f"it is not loaded by itself."
        )
    private.register_device_module("xla", module)
    hooks, guard = _Hooks(), _Guard()
    _keep.extend((hooks, guard))
    private.register_hooks(hooks)
    register(private.register_device_guard, guard)
    confirm_layout()
    let_exceptions_pass()
    answer_for_current_device(devices.current)
    answer_for_device_count(_ordinals)
    devices.before_second_ordinal.append(_count_ordinals)
    if platform.expected_device_count() > 1:
        _count_ordinals()
    if not (is_wanted(native()) and wait_for_first_use()):
        private.rename_backend("xla")
    answer()


# The number of ordinals that PyTorch's C++ sees.
_ordinals = types.SimpleNamespace(count=1)


def _count_ordinals() -> None:
    # PyTorch asks at the first backward pass of the process, be it of CPU tensors: that must not start a client.
    _ordinals.count = device_count() if platform.is_started() else platform.expected_device_count()


def is_available() -> bool:
    """Whether there is an `xla` device: always, since the CPU is one."""
    return True


def is_initialized() -> bool:
    """Whether a client runs."""
    return platform.is_started()


def device_count() -> int:
    """How many ordinals this process addresses."""
    return devices.device_count()


def current_device() -> int:
    """The ordinal a bare "xla" means in this thread."""
    return devices.current_index()


def set_device(device: Any) -> None:
    """Makes `device` the one a bare "xla" means in this thread."""
    devices.set_current_index(_index(device))


@contextmanager
def device(index: Any) -> Any:
    """A `with` block in which a bare "xla" means this ordinal."""
    before = devices.current_index()
    devices.set_current_index(_index(index))
    try:
        yield
    finally:
        devices.set_current_index(before)


def synchronize(device: Any = None) -> None:
    """Computes everything recorded on the device and waits for it."""
    if devices.existing_devices():  # PyTorch's profiler asks all devices that there are, used or not
        sync_device(devices.device_at(_index(device)), wait=True)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes `torch.autocast("xla")` accepts."""
    return [torch.bfloat16, torch.float16]


def get_device_properties(device: Any = None) -> types.SimpleNamespace:
    """Name and platform of the device."""
    target = devices.device_at(_index(device)).target
    return types.SimpleNamespace(name=target.kind, platform=target.platform, id=target.device.id)


def get_device_name(device: Any = None) -> str:
    """The vendor's name of the device."""
    return devices.device_at(_index(device)).target.kind


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """(0, 0): XLA devices have no such number."""
    return 0, 0


def empty_cache() -> None:
    """Returns to the system what the host keeps for the next programs. Other devices' memory is PJRT's."""
    host_malloc.release_memory()


class Stream(torch.Stream):
    """An order of execution. An XLA device has one, so streams are the same and need no waiting for each other.

    PyTorch's own class, which its C++ takes without looking, as it does events.
    """

    device_type = "xla"  # type: ignore[assignment]

    def __new__(cls, device: Any = None, priority: int = 0, **_: Any) -> "Stream":
        devices.take_name()
        return super().__new__(cls, device=torch.device("xla", _index(device)))

    def synchronize(self) -> None:
        """Waits for everything started so far."""
        synchronize(self.device)

    def query(self) -> bool:
        """True: the next operation waits by itself."""
        return True

    def wait_stream(self, stream: torch.Stream) -> None:
        """Nothing to do: there is one stream."""

    def wait_event(self, event: torch.Event) -> None:
        """Nothing to do: there is one stream."""

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """An event at this point."""
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Event(torch.Event):
    """A point in the one stream."""

    def __new__(cls, device: Any = None, enable_timing: bool = False, **_: Any) -> "Event":
        return super().__new__(cls, device=torch.device("xla", _index(device)))

    def __init__(self, device: Any = None, enable_timing: bool = False, **_: Any) -> None:
        self._index = _index(device)
        self._takes_time = enable_timing
        self._reached: float | None = None

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Whose stream it is in."""
        return torch.device("xla", self._index)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Marks this point: what was recorded so far is started. An event that takes the time waits for it, too."""
        sync_device(devices.device_at(self._index), wait=self._takes_time)
        self._reached = time.perf_counter()

    def elapsed_time(self, end_event: torch.Event) -> float:
        """The milliseconds that its device took from this point to the other."""
        events: Any = self, end_event
        if not all(event._takes_time for event in events):
            raise ValueError("elapsed_time: both events must be made with `enable_timing=True`.")
        begin, end = (event._reached for event in events)
        if begin is None or end is None:
            raise ValueError("elapsed_time: both events must be recorded before.")
        return float(end - begin) * 1e3

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Nothing to do: there is one stream."""

    def synchronize(self) -> None:
        """Waits for everything started so far on its device."""
        executor.wait([devices.device_at(self._index).target.device])

    def query(self) -> bool:
        """True: the next operation waits by itself."""
        return True


def current_stream(device: Any = None) -> Stream:
    """The one stream."""
    return Stream(device)


def default_stream(device: Any = None) -> Stream:
    """The one stream."""
    return Stream(device)


def set_stream(stream: Stream) -> None:
    """Nothing to do: there is one stream."""


@contextmanager
def stream(stream: Stream | None) -> Any:
    """A `with` block in that stream: there is one."""
    yield stream


def _is_in_bad_fork() -> bool:
    return platform.is_forked()


def _lazy_init() -> None:
    return None


# Checkpointing asks for this before it saves the random state of a device.
_initialized = True


module = types.ModuleType("torch.xla", "The device module of `xla`: what `torch.cuda` is for CUDA.")
for _name in (
    "is_available", "is_initialized", "device_count", "current_device", "set_device", "device", "synchronize",
    "get_amp_supported_dtype",
    "get_device_properties", "get_device_name", "get_device_capability", "empty_cache", "Stream", "Event",
    "current_stream",
    "default_stream", "set_stream", "stream", "_is_in_bad_fork", "_lazy_init", "_initialized",
):  # fmt: skip
    setattr(module, _name, globals()[_name])
vars(module).update(MEMBERS)
