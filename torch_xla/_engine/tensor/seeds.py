"""Seeds and random states by ordinal."""

import torch

from ..compat.names import torch as private
from .device import device_at, is_elsewhere
from .device import seed_all as seed_devices
from .random_state import Generator

_BYTES = 16

# Of ordinals that are other processes' devices, which nothing draws from here. Programs save and restore the states of
# all ordinals that they count.
_elsewhere: dict[int, Generator] = {}


def generator_of(index: int) -> Generator:
    """Return the generator of an ordinal, also of one that is the device of another process on this machine."""
    if is_elsewhere(index):
        return _elsewhere.setdefault(index, Generator())
    return device_at(index).generator


def seed(seed: int, index: int) -> None:
    """Start the sequence of `seed` on one ordinal."""
    generator_of(index).seed(int(seed))


def seed_all(seed: int) -> None:
    """Seed every ordinal without starting a client."""
    seed_devices(int(seed))


def state_of(index: int) -> int:
    """Return the state as an int."""
    return generator_of(index).state


def set_state(state: int, index: int) -> None:
    """Restore a state that `state_of` gave; any int is a state."""
    generator_of(index).seed(state)


def initial_seed(index: int) -> int:
    """Return the seed the ordinal was given last."""
    return generator_of(index).initial_seed


def state_as_tensor(index: int) -> torch.Tensor:
    """State and seed of an ordinal as bytes on the CPU."""
    return state_in_bytes(generator_of(index))


def set_state_from_tensor(state: torch.Tensor, index: int) -> None:
    """Restore what `state_as_tensor` gave."""
    state_from_bytes(generator_of(index), state)


def state_in_bytes(generator: Generator) -> torch.Tensor:
    """State and seed of a generator as bytes on the CPU."""
    words = [generator.state, generator.initial_seed & ((1 << 63) - 1)]
    with private.without_torch_dispatch():  # a trace that is under way would have no values in it
        return torch.tensor(words, dtype=torch.int64, device="cpu").view(torch.uint8)


def state_from_bytes(generator: Generator, state: torch.Tensor) -> None:
    """Restore what `state_in_bytes` gave."""
    if not isinstance(state, torch.Tensor):
        raise TypeError(f"an xla random state is a tensor, as `get_rng_state` returns it; got {type(state).__name__}")
    if state.dtype is not torch.uint8 or state.numel() != _BYTES:
        raise TypeError(f"an xla random state is {_BYTES} bytes; got {state.numel()} elements of {state.dtype}")
    with private.without_torch_dispatch():
        current, first = state.cpu().view(torch.int64).tolist()
    generator.seed(first)
    generator.state = current
