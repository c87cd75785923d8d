"""What the engine keeps per device: the tape in progress, the random state, how to make a tensor."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import torch

from ..client import platform
from ..compile import disk
from ..graph.plan import Plan
from ..graph.spec import spec_of
from ..graph.tape import Tape, Value
from ..private import torch as private
from .extension import tensor_on_ordinal
from .generator import Generator

# Backward runs in PyTorch's own threads and loaders upload from theirs: whoever touches a tape holds this. Reentrant,
# because collecting garbage may run anything.
LOCK = threading.RLock()


class Device:
    """One `xla` ordinal."""

    __slots__ = ("__weakref__", "generator", "index", "last_schedule", "new_tensor", "tape", "torch_device")

    def __init__(self, index: int) -> None:
        self.index = index
        self.torch_device = torch.device("xla", index)
        self.tape = Tape()
        self.generator = Generator()
        self.last_schedule: Any = None
        self.new_tensor: Callable[[tuple[int, ...], torch.dtype], torch.Tensor] = (
            private.create_empty_tensor if index == 0 else functools.partial(tensor_on_ordinal, index)
        )

    @property
    def jax_device(self) -> jax.Device:
        """The device as JAX knows it; starts the client."""
        device = platform.local_devices()[self.index]
        disk.foresee(device)
        return device

    def __repr__(self) -> str:
        return f"<xla:{self.index}>"


_devices: list[Device] = []
_current = threading.local()


# Called once, when the first ordinal above 0 is used.
before_second_ordinal: list[Callable[[], None]] = []


def device_count() -> int:
    """How many ordinals this process addresses."""
    return len(platform.local_devices())


def device_at(index: int) -> Device:
    """The device with this ordinal."""
    if index >= len(_devices):
        # Ordinal 0 always exists: tensors can be described on it before the client starts.
        if index > 0 and index >= device_count():
            raise RuntimeError(
                f"xla:{index} does not exist: this process has {device_count()} device(s), "
                f"xla:0 to xla:{device_count() - 1}. On the CPU, CPU_NUM_DEVICES sets how many there are."
            )
        with LOCK:
            while index > 0 and before_second_ordinal:
                before_second_ordinal.pop()()
            while len(_devices) <= index:
                _devices.append(Device(len(_devices)))
    return _devices[index]


def existing_devices() -> list[Device]:
    """The devices something was done on so far."""
    return _devices


def current_index() -> int:
    """The ordinal a bare "xla" means in this thread."""
    index: int = getattr(_current, "index", 0)
    return index


def set_current_index(index: int) -> None:
    """Makes `index` the ordinal that a bare "xla" means in this thread."""
    device_at(index)
    _current.index = index


def device_for(device: Any) -> Device:
    """The device that a factory's `device` argument names."""
    if device is None:
        return device_at(current_index())
    index = device.index if isinstance(device, torch.device) else torch.device(device).index
    return device_at(current_index() if index is None else index)


def uninitialised(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: Device) -> Value:
    """A value nobody has written yet."""
    return Value(spec_of(size, stride, dtype), device, None, -1)


_EMPTY_PLANS: dict[Any, Plan] = {}


def empty_plan(value: Value) -> Plan:
    """The plan that gives uninitialised memory a value when it is read after all: zeros."""
    plan = _EMPTY_PLANS.get(value.spec)
    if plan is None:
        size, dtype = list(value.spec.size), value.spec.dtype
        plan = _EMPTY_PLANS[value.spec] = Plan(
            torch.ops.aten.zeros.default, ((size,), {"dtype": dtype}), (), (), (value.spec,)
        )
    return plan
