"""Which processes of a job share a machine, and which of them can read the memory of another."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MACHINE = Path("/proc/sys/kernel/random/boot_id")  # has a text that no other machine has


class Home(NamedTuple):
    """The folder of a process in shared memory. Containers of a machine may have folders of one name."""

    machine: str
    folder: str
    device: int
    inode: int

    @property
    def host(self) -> tuple[str, int, int]:
        """Return what is equal for the processes that have one folder."""
        return self.machine, self.device, self.inode

    def is_here(self) -> bool:
        """Return whether this process reaches that same folder."""
        try:
            return home_of(Path(self.folder)) == self
        except OSError:
            return False


def home_of(folder: Path) -> Home:
    """Return the place of a folder. Raises `OSError` if this process can't reach it."""
    found = folder.stat()
    return Home(MACHINE.read_text(), str(folder), found.st_dev, found.st_ino)


def holders_among(homes: Sequence[Home]) -> list[int | None]:
    """Return for each process the one that holds a copy of its state: on another machine, or else in another folder."""
    machines = [home.machine for home in homes]
    return holders_of(machines if len(set(machines)) > 1 else [home.host for home in homes])


def holders_of(hosts: Sequence[object]) -> list[int | None]:
    """Return for each process the one on the next host that holds a copy of its state; `None` if there is one host.

    >>> from torch_xla.experimental.distributed_checkpoint._hosts import holders_of
    >>> holders_of(["a", "a", "b", "b"]), holders_of(["a", "a"])
    ([2, 3, 0, 1], [None, None])
    """
    places: dict[object, list[int]] = {}
    for rank, host in enumerate(hosts):
        places.setdefault(host, []).append(rank)
    order = list(places)
    found: list[int | None] = [None] * len(hosts)
    for number, host in enumerate(order) if len(order) > 1 else ():
        there = places[order[(number + 1) % len(order)]]
        for index, rank in enumerate(places[host]):
            found[rank] = there[index % len(there)]
    return found
