"""The slots of states in shared memory: a file of data, and its head, which is written last and has the checksum."""

import mmap
import os
import pickle
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..._engine import dtypes
from ..._engine.tensor import from_numpy

_WORDS = 1 << 17  # of 64 bits, in a block of the checksum


class Kept(NamedTuple):
    """The description of a kept tensor: its whole shape, and offset and shape of each part that the process has."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    mesh: str  # of a `DTensor`: how its processes divide it
    parts: dict[tuple[int, ...], tuple[int, ...]]


class Head(NamedTuple):
    """The description of a valid slot: process, step, and the offsets of the parts in the data."""

    step: int
    rank: int
    world: int
    size: int
    sum: int
    tensors: dict[str, Kept]
    at: dict[tuple[str, tuple[int, ...]], int]
    others: bytes


class Slot:
    """A file of data in shared memory, and its head."""

    def __init__(self, folder: Path, rank: int, number: int) -> None:
        self.data, self.head = folder / f"{rank}-{number}.data", folder / f"{rank}-{number}.head"
        self._bytes: torch.Tensor | None = None  # kept: a new mapping would fault page by page
        self._file = 0  # another process may have removed the file
        self.reader: Future[None] | None = None  # what reads the last state in this process

    def read_head(self) -> Head | None:
        """Return the head, or `None` if the slot is not valid."""
        try:
            return head_of(self.head.read_bytes())
        except FileNotFoundError:
            return None

    def begin(self, size: int) -> torch.Tensor:
        """Make the slot invalid, and return its memory. Raises `OSError` if the host has not as much."""
        self.head.unlink(missing_ok=True)
        is_read = self.reader is not None and not self.reader.done()
        self.reader = None
        if self.data.exists() and (is_read or not self.data.stat().st_mode & 0o200):  # `read` has lent it
            self.data.unlink()
        with self.data.open("a+b") as file:
            found = os.fstat(file.fileno())
            if self._bytes is None or (found.st_ino, found.st_size) != (self._file, size):
                self._bytes = None
                os.ftruncate(file.fileno(), size)
                if size:
                    os.posix_fallocate(file.fileno(), 0, size)  # else the first write to a page that lacks kills
                self._bytes, self._file = self._mapped(mmap.ACCESS_WRITE), found.st_ino
        return self._bytes

    def memory(self) -> torch.Tensor:
        """Return the memory that `begin` returned."""
        assert self._bytes is not None
        return self._bytes

    def commit(self, head: bytes) -> None:
        """Make the slot valid."""
        aside = self.head.with_suffix(".new")
        aside.write_bytes(zlib.crc32(head).to_bytes(4, "little") + head)
        aside.rename(self.head)

    def forget(self) -> None:
        """Make the slot invalid, and keep its memory for the next state."""
        self.head.unlink(missing_ok=True)

    def drop(self) -> None:
        """Give the memory back."""
        self.head.unlink(missing_ok=True)
        self.data.unlink(missing_ok=True)
        self._bytes = None

    def read(self) -> torch.Tensor:
        """Return the data. Tensors may go on to use this memory: no later state is written to it."""
        self.data.chmod(0o400)
        return self._mapped(mmap.ACCESS_COPY)

    def sent(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the file of the head, and the data to read while no state is written to the slot."""
        head = torch.frombuffer(bytearray(self.head.read_bytes()), dtype=torch.uint8)
        return head, self._mapped(mmap.ACCESS_COPY)

    def _mapped(self, access: int) -> torch.Tensor:
        with self.data.open("rb" if access == mmap.ACCESS_COPY else "r+b") as file:
            if not os.fstat(file.fileno()).st_size:
                return torch.empty(0, dtype=torch.uint8)
            return torch.frombuffer(mmap.mmap(file.fileno(), 0, access=access), dtype=torch.uint8)


def head_of(written: bytes) -> Head | None:
    """Return the head that a file of it has, or `None` if that is damaged."""
    if len(written) < 4 or zlib.crc32(written[4:]).to_bytes(4, "little") != written[:4]:
        return None
    return Head(*pickle.loads(written[4:]))


def array_at(memory: torch.Tensor, at: int, shape: Sequence[int], dtype: torch.dtype) -> np.ndarray:
    """Return the elements of a part in the memory of a slot, in the form in which a device has them."""
    form = dtypes.to_jax(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * form.itemsize
    return memory.numpy()[at : at + size].view(form).reshape(tuple(shape))


def tensor_at(memory: torch.Tensor, at: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return the same as a tensor on this memory, or on its own where PyTorch has another form of the dtype."""
    return from_numpy(array_at(memory, at, shape, dtype)).to(dtype)


class Sum:
    """A checksum of bytes that come in pieces: of the sums of the words of each block, at the rate of memory.

    PyTorch adds the blocks on several processors, which also share the page faults of new memory.
    """

    def __init__(self) -> None:
        self._blocks: list[torch.Tensor] = []
        self._size = 0

    def add(self, piece: torch.Tensor) -> None:
        """Add the bytes that follow: whole blocks, unless they are the last."""
        assert self._size % (8 * _WORDS) == 0
        words = piece[: piece.numel() // 8 * 8].view(torch.int64)
        whole = len(words) // _WORDS * _WORDS
        self._blocks.append(words[:whole].view(-1, _WORDS).sum(1))
        if whole < len(words):
            self._blocks.append(words[whole:].sum().view(1))
        self._size += piece.numel()

    def value(self) -> int:
        """Return the checksum of all bytes."""
        return zlib.crc32(torch.cat(self._blocks).numpy().tobytes(), self._size & 0xFFFFFFFF) if self._blocks else 0


def sum_of(data: torch.Tensor) -> int:
    """Return the checksum of bytes that are there."""
    found = Sum()
    found.add(data)
    return found.value()
