"""Count the tensors and buffers that were made and freed, when asked and not as it happens."""

from sys import getrefcount

import jax

from ..ir.graph import decode
from ..ir.tape import Value
from ..metrics import counters
from ..metrics.counters import Counter, Total
from ..runtime import platform
from ..runtime.buffers import kept_vectors
from .device import LOCK, existing_devices

# Values that uploads made or that finished tapes recorded, and buffers that uploads and programs made.
values = Counter("values")
buffers = Counter("buffers")


def _values_made() -> int:
    with LOCK:
        recorded = [decode(device.tape.code)[2] for device in existing_devices()]
    return values.value + sum(made_by >= 0 for producer in recorded for made_by in producer)


def _values_alive() -> int:
    # Every instance holds a reference to its class. The few others that there are belong to our modules, and stay.
    return sum(map(getrefcount, (Value, *Value.__subclasses__())))


def _values_gone() -> int:
    return _values_made() - _values_alive()


def _buffers_gone() -> int:
    return buffers.value - (len(jax.live_arrays()) - kept_vectors() if platform.is_started() else 0)


def begin() -> None:
    """Make the counters. Called when all modules that know `Value` are there."""
    counters.register(Total("CreateXlaTensor", _values_made))
    counters.register(Total("CreateDataHandles", lambda: buffers.value))
    for name in ("DestroyXlaTensor", "DestroyLtcTensor"):
        counters.register(Total(name, _values_gone))
    for name in ("DestroyDataHandles", "ReleaseDataHandles"):
        counters.register(Total(name, _buffers_gone))
