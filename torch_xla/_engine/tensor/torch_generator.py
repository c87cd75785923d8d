"""`torch.Generator(device="xla")`: a random state of its own, to be given to operators as `generator=`."""

from typing import Any
from weakref import WeakValueDictionary

import torch

from ..compat.abi import belong_to
from ..compat.names.torch import address_of
from .device import current_index, device_at, is_elsewhere
from .random_state import Generator
from .seeds import generator_of, state_from_bytes, state_in_bytes


class TorchGenerator(torch.Generator):
    """A random state that belongs to no device's sequence.

    PyTorch's C++ makes no generators for a backend in Python. This is one of the CPU that is given our device, so that
    draws on the CPU refuse it; draws on the device take the state that it also holds.
    """

    own: Generator
    _index: int

    def __new__(cls, index: int | None = None) -> "TorchGenerator":
        made = super().__new__(cls)
        made._index = _existing(current_index() if index is None else index)
        belong_to(made, made._index)
        made.own = Generator()
        _living[_identity(made)] = made
        return made

    def __init__(self, index: int | None = None) -> None:
        self.manual_seed(_DEFAULT_SEED)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that it was made for."""
        return torch.device("xla", self._index)

    def manual_seed(self, seed: int) -> "TorchGenerator":
        """Start the sequence of `seed`, as `torch.manual_seed(seed)` does on the device."""
        super().manual_seed(seed)  # refuses what is no seed
        self.own.seed(super().initial_seed())
        return self

    def seed(self) -> int:
        """Start the sequence of a random seed, and return the seed."""
        seed = super().seed()
        self.own.seed(seed)
        return seed

    def initial_seed(self) -> int:
        """Return the seed that it was given last."""
        return self.own.initial_seed

    def get_state(self) -> torch.Tensor:
        """Return the state as 16 bytes on the CPU, as `torch.xla.get_rng_state()` gives that of a device."""
        return state_in_bytes(self.own)

    def set_state(self, new_state: torch.Tensor) -> "TorchGenerator":  # type: ignore[override]
        """Restore what `get_state` gave."""
        state_from_bytes(self.own, new_state)
        return self

    def clone_state(self) -> "TorchGenerator":
        """Return another generator in the state of this one."""
        return TorchGenerator(self._index).set_state(self.get_state())

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, state: torch.Generator) -> "TorchGenerator":
        """Take the state of another generator of the device."""
        if not isinstance(state, TorchGenerator):
            given = f"one of {state.device}" if isinstance(state, torch.Generator) else type(state).__name__
            raise TypeError(
                f'torch.Generator("xla").graphsafe_set_state expects a generator of an xla device, got {given}; bytes '
                "are taken by set_state"
            )
        return self.set_state(state.get_state())

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._index, self.get_state())

    def __repr__(self) -> str:
        return f"<torch.Generator of {self.device}>"


def _existing(index: int) -> int:
    return index if is_elsewhere(index) else device_at(index).index


def _identity(generator: torch.Generator) -> int:
    address: int = address_of(generator)
    return address


# By what the C++ object is: kernels are called with another Python object for it.
_living: "WeakValueDictionary[int, TorchGenerator]" = WeakValueDictionary()

# As every generator of PyTorch starts.
_DEFAULT_SEED = 67280421310721


def _restored(index: int, state: torch.Tensor) -> TorchGenerator:
    return TorchGenerator(index).set_state(state)


# By ordinal.
_of_ordinals: dict[int, TorchGenerator] = {}


def generator_of_ordinal(index: int) -> TorchGenerator:
    """Return the generator whose state is that of an ordinal: what is drawn with it, the device draws next."""
    found = _of_ordinals.get(index)
    if found is None:
        # Not initialised, which would seed it.
        found = TorchGenerator.__new__(TorchGenerator, index)
        found.own = generator_of(index)
        _of_ordinals[index] = found
    return found


def state_of(generator: torch.Generator) -> Generator | None:
    """Return the state that draws with this generator take on the device; `None` if it is one of the CPU."""
    known = _living.get(_identity(generator))
    return known.own if known is not None else None


def generator_for(device: Any = None) -> TorchGenerator | None:
    """Return a generator for `device`; `None` if that is none of ours."""
    if device is None:
        return None
    named = torch.device(device)
    return TorchGenerator(named.index) if named.type == "xla" else None
