"""Seeds and random states by ordinal."""

import torch

from . import device as devices

_BYTES = 16


def seed(seed: int, index: int) -> None:
    """Starts the sequence of `seed` on one ordinal."""
    devices.device_at(index).generator.seed(seed)


def seed_all(seed: int) -> None:
    """Seeds every ordinal that exists; does not start a client."""
    devices.device_at(0)
    for device in devices.existing_devices():
        # Ordinals draw from sequences of their own; ordinal 0 from the seed itself.
        device.generator.seed(seed + device.index * 0x9E3779B97F4A7C15)


def state_of(index: int) -> int:
    """The state as an int."""
    return devices.device_at(index).generator.state


def set_state(state: int, index: int) -> None:
    """Restores a state that `state_of` gave; any int is a state."""
    devices.device_at(index).generator.seed(state)


def initial_seed(index: int) -> int:
    """The seed the ordinal was given last."""
    return devices.device_at(index).generator.initial_seed


def state_as_tensor(index: int) -> torch.Tensor:
    """State and seed as bytes on the CPU."""
    generator = devices.device_at(index).generator
    words = [generator.state, generator.initial_seed & ((1 << 63) - 1)]
    return torch.tensor(words, dtype=torch.int64, device="cpu").view(torch.uint8)


def set_state_from_tensor(state: torch.Tensor, index: int) -> None:
    """Restores what `state_as_tensor` gave."""
    if state.dtype is not torch.uint8 or state.numel() != _BYTES:
        raise TypeError(f"an xla random state is {_BYTES} bytes; got {state.numel()} elements of {state.dtype}")
    current, first = state.cpu().view(torch.int64).tolist()
    generator = devices.device_at(index).generator
    generator.seed(first)
    generator.state = current
