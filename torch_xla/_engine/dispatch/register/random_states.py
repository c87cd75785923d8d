"""The random numbers of `torch.xla`: seeds, states and generators of its ordinals, as `torch.cuda` has them."""

from collections.abc import Iterable, Sequence
from typing import Any, overload

import torch

from ...tensor import device as devices
from ...tensor import seeds
from ...tensor.device_names import index_or_current
from ...tensor.torch_generator import TorchGenerator, generator_of_ordinal


class _DefaultGenerators(Sequence[TorchGenerator]):
    """The generator of each ordinal, whose state the draws without `generator=` take."""

    def __len__(self) -> int:
        return devices.numbered_count()

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Any: ...

    def __getitem__(self, index: Any) -> Any:
        # A tuple would have to be made at the import, which must not start a client.
        ordinals = range(len(self))[index]
        return (
            tuple(map(generator_of_ordinal, ordinals)) if isinstance(index, slice) else generator_of_ordinal(ordinals)
        )

    def __repr__(self) -> str:
        return repr(tuple(self))


default_generators = _DefaultGenerators()


def manual_seed(seed: int) -> None:
    """Seed the current ordinal."""
    seeds.seed(seed, devices.current_index())


def manual_seed_all(seed: int) -> None:
    """Seed every ordinal."""
    seeds.seed_all(seed)


def seed() -> None:
    """Seed the current ordinal with a random number."""
    manual_seed(_random_seed())


def seed_all() -> None:
    """Seed every ordinal with one random number."""
    manual_seed_all(_random_seed())


def _random_seed() -> int:
    return torch.Generator("cpu").seed()


def initial_seed() -> int:
    """Return the seed of the current ordinal."""
    return seeds.initial_seed(devices.current_index())


def get_rng_state(device: object = None) -> torch.Tensor:
    """Return the random state of an ordinal: 16 bytes on the CPU, as `torch.random.fork_rng` keeps them."""
    return seeds.state_as_tensor(index_or_current(device))


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the random state of every ordinal."""
    return [seeds.state_as_tensor(index) for index in range(devices.numbered_count())]


def set_rng_state(new_state: torch.Tensor, device: object = None) -> None:
    """Restore a state that `get_rng_state` returned."""
    seeds.set_state_from_tensor(new_state, index_or_current(device))


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore the states that `get_rng_state_all` returned, the first to `xla:0`."""
    for index, state in enumerate(new_states):
        seeds.set_state_from_tensor(state, index)


# The members of `torch.xla` in this module.
MEMBERS: dict[str, object] = {
    "default_generators": default_generators,
    **{
        function.__name__: function
        for function in (
            get_rng_state, get_rng_state_all, initial_seed, manual_seed, manual_seed_all, seed, seed_all,
            set_rng_state, set_rng_state_all,
        )
    },
}  # fmt: skip
