"""Parse device names: "xla", "xla:1", 1, a `torch.device`, and real names such as "CPU:1"."""

from collections.abc import Sequence
from typing import Any

import torch

from ..runtime import platform
from .device import Device, current_index, device_at, ordinals


def device_named(device: object = None) -> Device:
    """Return the device called `device`; without a name, the current one of this thread."""
    return device_at(index_of(device))


def index_of(device: Any = None) -> int:
    """Return the ordinal of the device called `device`; without a name or a number, the current one of this thread."""
    if device is None:
        return current_index()
    if isinstance(device, int):
        if device < 0:
            raise RuntimeError(f"xla:{device} does not exist: ordinals count from 0")
        return device
    if isinstance(device, str) and not device.startswith("xla"):
        for index, real in zip(ordinals(), map(platform.real_name, platform.local_devices()), strict=False):
            if device == real:
                return index
    try:
        named = torch.device(device)
    except RuntimeError:  # which names the device types of PyTorch
        named = None
    if named is None or named.type != "xla":
        real = ", ".join(map(repr, real_names()))
        raise RuntimeError(f"{device} is not an xla device: expected a name such as 'xla' or 'xla:0', or one of {real}")
    return current_index() if named.index is None else named.index


def index_or_current(device: Any = None) -> int:
    """Return the ordinal that `device` names where PyTorch takes one; nothing and a negative number mean the current.

    Unlike `index_of`, as on CUDA. Raises a ValueError for a device of another type, and for what is no device.
    """
    if device is None:
        return current_index()
    if isinstance(device, int) and not isinstance(device, bool):
        return current_index() if device < 0 else device
    named = torch.device(device) if isinstance(device, str) else device
    if not isinstance(named, torch.device) or named.type != "xla":
        raise ValueError(f"expected an xla device or its number, such as 'xla', 'xla:0' or 0, got {device!r}")
    return current_index() if named.index is None else named.index


def index_in_use(device: Any = None) -> int:
    """Return what `index_or_current` does, and refuse a device that does not exist once a client has started."""
    index = index_or_current(device)
    if platform.is_started():
        device_at(index)
    return index


def real_names(names: Sequence[object] | None = None) -> list[str]:
    """Return the names of the hardware behind these devices, or behind all of this process, "CPU:0"."""
    local = platform.local_devices()
    chosen = range(len(local)) if names is None else [device_named(name).place for name in names]
    return [platform.real_name(local[index]) for index in chosen]
