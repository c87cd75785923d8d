"""Which process this is, and of how many. Asking starts no client."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import config
from .spmd_mode import is_on as is_spmd_on


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


class Meeting(NamedTuple):
    """How the processes of a program find each other, where `take` has given this process its place."""

    store: Callable[[], Any]  # returns a `torch.distributed.Store` of all processes
    is_served: bool  # whether the coordination service runs in the process that started them; else in process 0
    pid: int  # of the process that was given its place: forks inherit the place and do not belong to the program


ALONE = Place()

_place: Place | None = None
_meeting: Meeting | None = None


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
    global _place, _meeting
    _place, _meeting = given, Meeting(by, served, os.getpid())
    for listener in after_taking:
        listener()


@contextmanager
def standing_in(given: Place) -> Iterator[None]:
    """Let this process have the place `given` within a `with` block, in which it meets no other process."""
    global _place
    before = _place
    try:
        _place = given
        yield
    finally:
        _place = before


def meeting() -> Meeting | None:
    """Return how the processes find each other, if this process was given its place by `take`."""
    return _meeting


def is_served() -> bool:
    """Return whether the coordination service runs in the process that started this one."""
    return _meeting is not None and _meeting.is_served


# Called when this process was given its place.
after_taking: list[Callable[[], None]] = []


def is_numbered() -> bool:
    """Return whether the device of this process has the number of the process on its machine: `xla:<LOCAL_RANK>`.

    It has under torchrun, under a scheduler and after `init_process_group(rank=...)`, as on CUDA. A process that
    `torch_xla.launch` started calls its device `xla:0`, as PyTorch/XLA does, and so does one under SPMD.
    """
    return place().count > 1 and not is_served() and not is_spmd_on()


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
    return 1 if is_spmd_on() else place().count


def replica_index() -> int:
    """Return the index of this thread's device among these."""
    return 0 if is_spmd_on() else place().index


def local_replica_index() -> int:
    """Return the index of this thread's device on this machine."""
    return 0 if is_spmd_on() else place().local_index


def coordinator_address() -> str:
    """Return the address of the first process."""
    return place().address
