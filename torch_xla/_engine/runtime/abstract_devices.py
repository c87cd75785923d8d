"""Devices and buffers of a planned step: sizes and places without memory."""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from weakref import WeakSet

import jax
import numpy as np

from ..compat.names import jax as private
from ..errors import NotComputed
from . import platform
from .abstract_buffer import Placeholder

# Whether what comes from the host is only described, too.
active = False

# The buffers with a reference.
living: "WeakSet[PlannedBuffer]" = WeakSet()


class PlannedBuffer(Placeholder):
    """Shape, dtype and sharding of an array that is never made."""

    __slots__ = ("__weakref__", "contents")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        sharding: Any,
        contents: np.ndarray | None = None,
    ) -> None:
        self.contents = contents  # of a few that follow from the program alone, such as whether a mask hides anything
        super().__init__(shape, np.dtype(dtype), sharding)
        living.add(self)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """The bytes of the whole value."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)  # for example, code that tests the type of the object
        self.refuse()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:  # type: ignore[override]
        if self.contents is not None:
            return self.contents
        if _zeros is not None:
            _zeros.append(self.shape)
            return np.zeros(self.shape, self.dtype)
        self.refuse()

    def block_until_ready(self) -> "PlannedBuffer":  # type: ignore[override]
        """Return itself, if its elements are known or read as zeros."""
        if self.contents is not None or _zeros is not None:
            return self
        self.refuse()

    def is_ready(self) -> bool:
        """Return whether its elements are known or read as zeros."""
        return self.contents is not None or _zeros is not None

    def __repr__(self) -> str:
        return f"<planned {list(self.shape)} {self.dtype}>"

    def refuse(self) -> NoReturn:
        """Raise the error for reading the elements."""
        raise NotComputed(
            f"The elements of a tensor of size {list(self.shape)} and dtype {self.dtype} were asked for, but it was "
            "only planned: torch_xla.debug.plan() computes nothing. Leave what reads values (print, .item(), .cpu(), "
            "`if tensor:`) out of the planned step, and use no tensor afterwards that was made in it."
        )


# The shapes that were read as zeros, while elements that are not known read so.
_zeros: list[tuple[int, ...]] | None = None


@contextmanager
def read_as_zeros() -> Iterator[list[tuple[int, ...]]]:
    """Read unknown elements as zeros within a `with` block, which gets the shapes of all that were read."""
    global _zeros
    before, _zeros = _zeros, []
    try:
        yield _zeros
    finally:
        _zeros = before


@functools.cache
def virtual_devices(number: int) -> tuple[jax.Device, ...]:
    """Return this number of virtual devices of the host's platform. Programs are compiled for them, but not run."""
    if number < 1:
        raise ValueError(f"plan(): expected at least one device, not {number}")
    return private.virtual_cpu_devices(number)


# The contents of a buffer are kept, if they are known, up to this number of bytes.
_MOST_KNOWN = 1 << 20


def of_host(host: np.ndarray, sharding: Any) -> PlannedBuffer:
    """Return the planned buffer for an array of the host."""
    return PlannedBuffer(host.shape, host.dtype, sharding, host if host.nbytes <= _MOST_KNOWN else None)


@contextmanager
def suspended() -> Iterator[jax.Device]:
    """Use real buffers and devices again within a `with` block, which gets the first device of this process."""
    global active
    before = active
    try:
        active = False
        with platform.standing_in(None):
            yield platform.local_devices()[0]
    finally:
        active = before


@contextmanager
def in_place_of_buffers(devices: tuple[jax.Device, ...] | None, rank: int | None = None) -> Iterator[None]:
    """Put nothing on a device within a `with` block, in which the `devices`, if given, are those of this process, or
    with a `rank` that of each process, this one at that place.
    """
    global active
    before = active
    try:
        active = True
        with platform.standing_in(devices, rank):
            yield
    finally:
        active = before
