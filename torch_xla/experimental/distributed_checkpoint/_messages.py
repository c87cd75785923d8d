"""Messages between the processes of a checkpoint manager, by its process group."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

# Bytes of a message, in whole blocks of the checksum: a message is added up while the next one comes.
PIECE = 1 << 23

To = tuple[int, torch.Tensor]  # a process, and the memory that is sent to it or comes from it


class Messages:
    """The messages of a group; a program of one process has none."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.rank, self.world = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))

    def gather(self, mine: Any) -> list[Any]:
        """Return what each process gives."""
        if self._group is None:
            return [mine]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, mine, self._group)
        return found

    def begin_barrier(self) -> Callable[[], object]:
        """Say that this process is here; the result waits until all are."""
        if self._group is None:
            return lambda: None
        work = dist.barrier(self._group, async_op=True)
        assert work is not None
        return work.wait

    def begin_to_send(self, sends: Iterable[To]) -> Callable[[], None]:
        """Begin to send, in the order of each process that gets something; the result waits until all is sent."""
        works = [work for rank, tensor in sends for work, _ in self._begin(dist.isend, rank, tensor)]
        return lambda: _wait(works)

    def receive(self, receives: Sequence[To], seen: Callable[[torch.Tensor], None] | None = None) -> None:
        """Receive, in the order of each process that sends. `seen` is called with each piece as it comes."""
        begun = [each for rank, tensor in receives for each in self._begin(dist.irecv, rank, tensor)]
        for work, piece in begun:
            work.wait()
            if seen is not None:
                seen(piece)

    def _begin(self, call: Callable[..., Any], rank: int, tensor: torch.Tensor) -> Iterable[tuple[Any, torch.Tensor]]:
        assert self._group is not None
        at = dist.get_global_rank(self._group, rank)
        for piece in tensor.split(PIECE):
            work = call(piece, at, self._group) if piece.numel() else None
            if work is not None:  # of a process outside of the group
                yield work, piece


def _wait(works: Iterable[Any]) -> None:
    for work in works:
        work.wait()
