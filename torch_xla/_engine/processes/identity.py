"""Which process this is, and of how many. Asking starts no client."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import config
from . import spmd_mode


@dataclass(frozen=True, slots=True)
class Place:
    """The place of this process among the processes of its program. Each process has one device."""

    index: int = 0
    count: int = 1
    local_index: int = 0  # among those on this machine
    local_count: int = 1
    host: int = 0  # which machine this is
    address: str = "127.0.0.1"  # of the machine that runs process 0

    @property
    def is_on_one_machine(self) -> bool:
        """Return whether all processes run on this machine."""
        return self.local_count == self.count


ALONE = Place()

_place: Place | None = None
# Gives a `torch.distributed.Store` by which the processes find each other.
meet: Callable[[], Any] | None = None
# Whether the service by which they speak runs in the process that started them; else it runs in process 0.
is_served = False
# The process that was given its place; its forks have the same, and are none of the program.
taken_by = 0


def place() -> Place:
    """Return the place of this process: given by `take`, or by `torchrun`, whose variables say so."""
    global _place
    if _place is None:
        found = config.torchrun()
        if found is None:
            return ALONE
        _place = Place(
            found.rank, found.world_size, found.local_rank, found.local_world_size, found.node, found.master_address
        )
    return _place


def take(given: Place, by: Callable[[], object], served: bool) -> None:
    """Give this process the place `given`; `by()` returns the store through which it finds the others.

    `served` says whether the service by which they speak runs elsewhere.
    """
    global _place, meet, is_served, taken_by
    _place, meet, is_served, taken_by = given, by, served, os.getpid()
    for listener in after_taking:
        listener()


# Called when this process was given its place.
after_taking: list[Callable[[], None]] = []


def is_numbered() -> bool:
    """Return whether the device of this process has the number of the process on its machine: `xla:<LOCAL_RANK>`.

    It has under torchrun, under a scheduler and after `init_process_group(rank=...)`, as on CUDA. A process that
    `torch_xla.launch` started calls its device `xla:0`, as PyTorch/XLA does, and so does one under SPMD.
    """
    return place().count > 1 and not is_served and not spmd_mode.is_on()


def process_count() -> int:
    """Return the number of processes in the program."""
    return place().count


def local_process_count() -> int:
    """Return the number of processes of the program on this machine."""
    return place().local_count


def process_index() -> int:
    """Return the index of this process."""
    return place().index


def host_index() -> int:
    """Return the index of this machine among those of the program."""
    return place().host


def replica_count() -> int:
    """Return the number of devices that run the same program on different data. Under SPMD all of them are one."""
    return 1 if spmd_mode.is_on() else place().count


def replica_index() -> int:
    """Return the index of this thread's device among these."""
    return 0 if spmd_mode.is_on() else place().index


def local_replica_index() -> int:
    """Return the index of this thread's device on this machine."""
    return 0 if spmd_mode.is_on() else place().local_index


def coordinator_address() -> str:
    """Return the address of the first process."""
    return place().address
