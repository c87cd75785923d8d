"""Guards on global state: what a recorded program depends on of PyTorch and of this thread."""

import threading
from typing import Any

import torch

from ...compat.names import torch as private
from ...compile import settings_in_force
from ...dispatch.checks import device_values
from ...tensor.device import Device

# Devices whose autocast state programs read: `xla`, and PyTorch's defaults where no device is named.
_AUTOCAST = ("xla", "cpu", "cuda")


def circumstances(device: Device) -> tuple[object, ...]:
    """Return all of it, to be compared. It holds what it names, so that nothing else can take its place."""
    return (
        device.index,
        threading.get_ident(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        *(ask(kind) for kind in _AUTOCAST for ask in (torch.is_autocast_enabled, torch.get_autocast_dtype)),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
        private.level_of_tangents(),
        private.modes_of_calls(),
        settings_in_force.now(),
        device_values.are_on(),
    )


_NAMES = (
    "the current device",
    "the calling thread",
    "whether gradients are recorded",
    "inference mode",
    *(f"autocast{what} of {kind!r}" for kind in _AUTOCAST for what in ("", "'s dtype")),
    "the cache of autocast",
    "the default dtype",
    "whether algorithms must be deterministic",
    "the detection of anomalies",
    "the level of forward-mode differentiation",
    "a mode or `torch.device` around the call",
    "a setting that programs are compiled with",
    "whether values are checked",
)


def changed(before: tuple[Any, ...], now: tuple[object, ...]) -> str:
    """Return the name of the first circumstance that is another now, or nothing."""
    for name, old, new in zip(_NAMES, before, now, strict=True):
        if old != new:
            return name
    return ""


def hindrance() -> str:
    """Return why nothing can be replayed where we are, or nothing."""
    if private.transforms_are_active():
        return "a transform of `torch.func` is active"
    if torch.is_anomaly_enabled():
        return "autograd looks for anomalies"
    for mode in private.modes_of_calls():
        if type(mode) is not private.DeviceContext:
            name = "hooks of saved tensors" if isinstance(mode, tuple) else f"`{type(mode).__qualname__}`"
            return f"{name} may do something at every operation"
    return ""
