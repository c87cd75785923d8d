"""Attributes that a device reports."""

from collections.abc import Sequence

import jax

from .platform import local_devices, real_name

# Attributes of TPUs only: the position of a core in the mesh of chips.
_OPTIONAL = ("coords", "core_on_chip", "num_cores")


def attributes_of(device: jax.Device) -> dict[str, object]:
    """Return the device's name, and where it has a place in a mesh of chips, that place."""
    found: dict[str, object] = {"name": real_name(device)}
    for name in _OPTIONAL:
        value = getattr(device, name, None)
        if value is not None:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def slices_of(devices: Sequence[jax.Device]) -> list[list[int]]:
    """Return the indices in `devices` of the devices of each slice; without slice indices, those of each process."""
    tells = all(getattr(device, "slice_index", None) is not None for device in devices)
    found: dict[int, list[int]] = {}
    for place, device in enumerate(devices):
        found.setdefault(device.slice_index if tells else device.process_index, []).append(place)
    return [found[key] for key in sorted(found)]


def device_with_name(name: str) -> jax.Device:
    """Return the device of this process called `name`, such as "CPU:0"."""
    names = {real_name(device): device for device in local_devices()}
    if name not in names:
        raise ValueError(f"no device is called {name!r}; there are {', '.join(names)}")
    return names[name]
