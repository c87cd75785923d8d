"""Copy host memory to device buffers and back. A buffer is a committed `jax.Array` on one or several devices.

This module has every function that moves, makes or waits for a buffer without a compiled program (see `atomic`).
"""

import functools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..atomic import uncollected
from ..compat.names import jax as private
from ..errors import NotComputed
from . import abstract_devices
from .abstract_devices import PlannedBuffer
from .device_assignment import Target


@uncollected
def put(host: np.ndarray, target: Target, sharding: object = None) -> jax.Array:
    """Return a buffer with the contents of `host`, which the caller gives away: on a CPU device it may become the
    buffer.

    On several devices it is divided so, or each has a copy. Every process of the target brings the same contents.
    """
    if abstract_devices.active:
        return abstract_devices.of_host(host, target.everywhere if sharding is None else sharding)  # type: ignore[return-value]
    if not target.is_spread:
        return private.put(host, target.device)
    return _spread(host, target.everywhere if sharding is None else sharding)


_vectors = weakref.WeakSet["KeptVector"]()


def kept_vectors() -> int:
    """Return the number of living arrays that are vectors of numbers for programs, not values of tensors."""
    return sum(vector._kept is not None for vector in list(_vectors))


class KeptVector:
    """A few numbers on a target, moved there again when they are others: most stay what they were from run to run."""

    __slots__ = ("__weakref__", "_kept", "_target")

    def __init__(self, target: Target) -> None:
        self._target = target
        self._kept: tuple[bytes, jax.Array] | None = None
        _vectors.add(self)

    def put(self, vector: np.ndarray) -> jax.Array:
        """Return a buffer with the contents of `vector`, whose dtype is always the same. It may not be donated."""
        if abstract_devices.active:
            return put(vector, self._target)
        kept, content = self._kept, vector.tobytes()
        if kept is None or kept[0] != content:
            kept = self._kept = content, put(vector, self._target)
        return kept[1]


def _spread(host: np.ndarray, sharding: Any) -> jax.Array:
    with jax.enable_x64(True):
        if sharding.is_fully_addressable:
            return jax.device_put(host, sharding)
        return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)


class PartsByDevice(NamedTuple):
    """The contents of a buffer on the devices of this process."""

    size: tuple[int, ...]
    sharding: Any
    by_device: dict[jax.Device, np.ndarray]


@uncollected
def of_parts(wanted: Sequence[PartsByDevice]) -> list[jax.Array]:
    """Create buffers from the parts for each device of this process. One call of JAX brings all parts."""
    if abstract_devices.active:
        dtypes = [next(iter(each.by_device.values())).dtype for each in wanted]
        planned = [PlannedBuffer(each.size, dtype, each.sharding) for each, dtype in zip(wanted, dtypes, strict=True)]
        return planned  # type: ignore[return-value]
    with jax.enable_x64(True):
        parts = [part for each in wanted for part in each.by_device.values()]
        arrays = iter(jax.device_put(parts, [device for each in wanted for device in each.by_device]))
        by_buffer = [[next(arrays) for _ in each.by_device] for each in wanted]
        return [
            jax.make_array_from_single_device_arrays(each.size, each.sharding, own)
            for each, own in zip(wanted, by_buffer, strict=True)
        ]


@uncollected
def of_processes(host: np.ndarray, sharding: object) -> jax.Array:
    """Create a buffer from the parts of all processes, which are concatenated."""
    if abstract_devices.active:
        return abstract_devices.of_host(host, sharding)  # type: ignore[return-value]
    with jax.enable_x64(True):
        return jax.make_array_from_process_local_data(sharding, host)


@uncollected
def place(buffer: jax.Array, sharding: Any, size: tuple[int, ...] | None = None) -> jax.Array:
    """Return the same contents, divided among devices in another way; the buffer itself if it is divided so.

    Another buffer shares no memory with it, so that each may be given to a program while the other is read.
    With `size` the new one has that size: it is cut, or made longer by zeros, at the end of each dimension.
    """
    size = buffer.shape if size is None else size
    if size == buffer.shape and buffer.sharding.is_equivalent_to(sharding, buffer.ndim):
        return buffer
    if abstract_devices.active:
        return PlannedBuffer(size, buffer.dtype, sharding)  # type: ignore[return-value]
    with jax.enable_x64(True):
        if size != buffer.shape:
            if buffer.sharding.device_set != sharding.device_set:
                buffer = jax.device_put(np.asarray(buffer), NamedSharding(sharding.mesh, PartitionSpec()))
            return _resizing(size, sharding)(buffer)  # type: ignore[no-any-return]
        placed = jax.device_put(buffer, sharding)
        if _have_parts_in_common(buffer.sharding, sharding, size):
            # The first call reuses parts that are already in place, whatever its `may_alias` is; this one copies them.
            placed = jax.device_put(placed, sharding, may_alias=False)
        return placed


@functools.lru_cache(maxsize=4096)
def _have_parts_in_common(one: jax.sharding.Sharding, other: Any, size: tuple[int, ...]) -> bool:
    """Return whether a device has the same part of a value in both of two shardings."""
    parts = other.devices_indices_map(size)
    return any(
        device in parts and all(map(_equal_cuts, size, part, parts[device]))
        for device, part in one.devices_indices_map(size).items()
    )


def _equal_cuts(length: int, one: slice, other: slice) -> bool:
    return one.indices(length) == other.indices(length)


@functools.lru_cache(maxsize=256)
def _resizing(size: tuple[int, ...], sharding: object) -> Any:
    return jax.jit(lambda array: resized(array, size), out_shardings=sharding)


def resized(array: Any, size: tuple[int, ...]) -> jax.Array:
    """Return the array cut, or made longer by zeros, at the end of each dimension; in a program."""
    low = [(0, wanted - length, 0) for length, wanted in zip(array.shape, size, strict=True)]
    return jax.lax.pad(array, jax.numpy.zeros((), array.dtype), low)


@uncollected
def get(buffer: jax.Array) -> np.ndarray:
    """Return the contents of a buffer: read-only, and on a CPU device the buffer's own memory. Wait for them.

    A buffer on devices of several processes is gathered first, so every process must call this.
    """
    return np.asarray(buffer if buffer.is_fully_addressable else _whole(buffer))


@uncollected
def fetch(buffer: jax.Array) -> np.ndarray:
    """Call `get`, and raise what computing the buffer raised."""
    jax.block_until_ready(buffer)
    return np.asarray(buffer if buffer.is_fully_addressable else _whole(buffer))


def _whole(buffer: jax.Array) -> jax.Array:
    if not buffer.is_fully_replicated:
        sharding: Any = buffer.sharding
        with jax.enable_x64(True):
            buffer = _gather(sharding.mesh)(buffer)
    return buffer.addressable_data(0)


@functools.lru_cache(maxsize=16)
def _gather(mesh: jax.sharding.Mesh) -> Any:
    return jax.jit(lambda array: array, out_shardings=NamedSharding(mesh, PartitionSpec()))


def deleted_error(buffer: jax.Array) -> NotComputed:
    """Return the error for reading memory that was donated to a program, or deleted."""
    return NotComputed(
        f"the memory of this tensor ({buffer.dtype}{list(buffer.shape)}) was given to a program that ran since: it had "
        "been marked by _set_buffer_donation, or a JAX array that shares it, from interop.to_jax() or DLPack, "
        "was donated or deleted. Do not read it again, or clone() it before"
    )


@uncollected
def move(buffer: jax.Array, target: Target) -> jax.Array:
    """Return a copy on another target."""
    if abstract_devices.active:
        return PlannedBuffer(buffer.shape, buffer.dtype, target.everywhere)  # type: ignore[return-value]
    with jax.enable_x64(True):
        return jax.device_put(buffer, target.everywhere)


@uncollected
def copied(buffer: jax.Array) -> jax.Array:
    """Return another buffer with the same contents."""
    with jax.enable_x64(True):
        return jax.numpy.copy(buffer)


@uncollected
def converted(buffer: jax.Array, dtype: Any) -> jax.Array:
    """Return a buffer of the same numbers in another dtype; the same one if it has that."""
    if buffer.dtype == dtype:
        return buffer
    with jax.enable_x64(True):
        return buffer.astype(dtype)


@uncollected
def of_array(host: np.ndarray) -> jax.Array:
    """Return a buffer where JAX puts one, in the dtype that JAX gives it."""
    return jax.numpy.asarray(host)


@uncollected
def adopted(exporter: object) -> jax.Array:
    """Return a buffer on the memory behind what has `__dlpack__`."""
    with jax.enable_x64(True):
        return jax.dlpack.from_dlpack(exporter)  # type: ignore[no-any-return]


@uncollected
def offered(buffer: jax.Array) -> object:
    """Return a DLPack capsule on the memory of a buffer that was computed."""
    return buffer.__dlpack__()


@uncollected
def wait(buffers: object) -> None:
    """Wait until all are computed. Raise the errors of their computation."""
    jax.block_until_ready(buffers)


@uncollected
def wait_for_callbacks() -> None:
    """Wait until the callbacks of every program that has begun are done."""
    jax.effects_barrier()


def owned_copy(host: np.ndarray, target: Target) -> np.ndarray:
    """Return `host` itself where the transfer copies before it returns, else a copy the caller cannot write to
    later.
    """
    return np.array(host, copy=True) if target.is_host or target.is_spread else host
