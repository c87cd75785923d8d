"""Copies of arrays that a training waits for: into large pages, by all processors."""

import mmap
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import torch

_ALIGNED = 64
_PIECE = 1 << 22  # bytes that a thread copies at a time


def room(size: int) -> torch.Tensor:
    """Return new memory in large pages: a fault for each small page takes longer than to write it."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def places_of(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Return where arrays of these sizes begin in one memory, as devices want it, and the size of all."""
    begins, end = [], 0
    for size in sizes:
        begins.append(end)
        end += -(-size // _ALIGNED) * _ALIGNED
    return begins, end


class Room:
    """Memory for the copy of one state at a time, whose pages are there for the next one."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def array(self, size: int) -> np.ndarray:
        """Return the bytes of the room, which the state before has left."""
        if len(self._memory) != size:
            self._memory = torch.empty(0, dtype=torch.uint8)  # given back first
            self._memory = room(size)
        return self._memory.numpy()


def copied(arrays: Sequence[np.ndarray], to: Room) -> list[np.ndarray]:
    """Return copies of arrays, in one memory."""
    begins, size = places_of(each.nbytes for each in arrays)
    memory = to.array(size)
    found = [
        memory[begin : begin + each.nbytes].view(each.dtype).reshape(each.shape)
        for begin, each in zip(begins, arrays, strict=True)
    ]
    copy_all(list(zip(found, arrays, strict=True)))
    return found


def copy_all(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Copy to the first of each two arrays, which has its elements in their order."""
    pieces = [piece for to, source in pairs for piece in _pieces(to, source)]
    if len(pieces) == 1 or torch.get_num_threads() == 1:
        for to, source in pieces:
            np.copyto(to, source)
        return
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for _ in threads.map(lambda piece: np.copyto(*piece), pieces):
            pass


def _pieces(to: np.ndarray, source: np.ndarray) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    if not source.flags.c_contiguous:
        return [(to, source)]
    bytes_to, bytes_source = to.reshape(-1).view(np.uint8), source.reshape(-1).view(np.uint8)
    return [
        (bytes_to[begin : begin + _PIECE], bytes_source[begin : begin + _PIECE])
        for begin in range(0, len(bytes_to), _PIECE)
    ]
