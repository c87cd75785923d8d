"""The parts of a divided value that this process holds: copy them to the host and back."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import dtypes
from ..dtypes import to_numpy
from ..ir.tape import Value
from ..lowering.machinery.jax_sharding import carried, to_jax
from ..runtime import buffers, platform
from ..runtime.device_assignment import Target
from ..step.sync import materialise
from ..tensor import sharding_annotations
from ..tensor.storage import hold, snapshot, value_of
from ..tensor.upload import from_numpy
from .placement import planned as planned_sharding


class Shard(NamedTuple):
    """One device's part of a value."""

    padded: torch.Tensor  # on the CPU: as long on every device, where the devices do not divide the whole evenly
    device: str  # as "CPU:0"
    indices: tuple[slice, ...]  # which elements of the whole
    replica: int  # 0, or which copy of this part it is

    @property
    def data(self) -> torch.Tensor:
        """The elements that the indices say."""
        return self.padded[tuple(map(slice, _size(self.indices)))]

    @property
    def begin(self) -> tuple[int, ...]:
        """Return the offset in the whole tensor."""
        return _begin(self.indices)


class LocalPart(NamedTuple):
    """One of the different parts of a value that this process has."""

    array: np.ndarray  # read-only: it may be the memory of its device
    is_first: bool  # whether a device of this process has the first of its copies in the program


class _Held(NamedTuple):
    """What one device of this process holds of a value."""

    data: Any  # the array of JAX: as long on every device, where the devices do not divide the whole evenly
    device: Any
    indices: tuple[slice, ...]
    replica: int


def local_shards(tensor: torch.Tensor) -> list[Shard]:
    """Return a copy of the shard of `tensor` on each device of this process, in the order of the devices.

    Waits for the devices.
    """
    return [
        Shard(
            from_numpy(np.array(held.data)).to(tensor.dtype),
            platform.real_name(held.device),
            held.indices,
            held.replica,
        )
        for held in _held(tensor)
    ]


def local_parts(tensor: torch.Tensor) -> dict[tuple[int, ...], LocalPart]:
    """Return the different parts of `tensor` that this process has, by their offsets. Waits for the devices.

    The arrays have the counterpart of the tensor's dtype. A part without elements is there only if the tensor has none.
    """
    found: dict[tuple[int, ...], LocalPart] = {}
    for held in _held(tensor):
        begin, size = _begin(held.indices), _size(held.indices)
        if begin in found:
            found[begin] = found[begin]._replace(is_first=found[begin].is_first or held.replica == 0)
        elif 0 not in size or not tensor.numel():
            array = np.asarray(held.data)[tuple(map(slice, size))]
            if array.dtype != dtypes.to_jax(tensor.dtype):
                array = to_numpy(from_numpy(np.array(array)).to(tensor.dtype))
            found[begin] = LocalPart(array, held.replica == 0)
    return found


def _held(tensor: torch.Tensor) -> list[_Held]:
    sharding_annotations.keep_now(tensor)
    buffer = materialise(snapshot(tensor))
    size, in_order = tuple(tensor.shape), sorted(buffer.addressable_shards, key=_ordinal)
    if buffer.ndim != tensor.dim():  # in a manual region, where each device has its own value
        everything = tuple(slice(0, length, 1) for length in size)
        return [_Held(shard.data[0], shard.device, everything, 0) for shard in in_order]
    return [_Held(shard.data, shard.device, _within(shard.index, size), shard.replica_id) for shard in in_order]


def _ordinal(shard: Any) -> int:
    return platform.ordinal_of(shard.device)


def _begin(indices: Sequence[slice]) -> tuple[int, ...]:
    return tuple(int(each.start) for each in indices)


def _size(indices: Sequence[slice]) -> tuple[int, ...]:
    return tuple(int(each.stop - each.start) for each in indices)


def _within(index: Sequence[slice], size: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the slices of a value of this size, which those of its array may exceed."""
    starts = [min(each.start or 0, length) for each, length in zip(index, size, strict=True)]
    ends = [length if each.stop is None else min(each.stop, length) for each, length in zip(index, size, strict=True)]
    return tuple(slice(start, end, 1) for start, end in zip(starts, ends, strict=True))


def local_places(tensor: torch.Tensor) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return offset and size in `tensor` of the shard on each device of this process, in the order of the devices."""
    target = value_of(tensor).device.target
    places = _places(tuple(tensor.shape), to_jax(planned_sharding(tensor), target))
    return [(_begin(places[device]), _size(places[device])) for device in _in_order(target)]


def _places(shape: tuple[int, ...], sharding: Any) -> dict[Any, tuple[slice, ...]]:
    index = sharding.addressable_devices_indices_map(carried(shape, sharding))
    return {device: _within(place, shape) for device, place in index.items()}


def _in_order(target: Target) -> list[Any]:
    """Return the devices of this process."""
    return sorted(target.local, key=platform.ordinal_of)


def load_local_shards(tensor: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Write to `tensor` the shard of each device of this process, in the order of `local_places`.

    Every process of the program brings its own. Where the devices do not divide the whole evenly, parts may have the
    padding of `Shard.padded`. Raises `RuntimeError` for parts of another number or size.
    """
    give_local_shards([(tensor, [part.to("cpu", copy=True) for part in parts])])


def give_local_shards(given: Sequence[tuple[torch.Tensor, Sequence[torch.Tensor]]]) -> None:
    """Write the same to several tensors, of parts on the CPU that the caller gives away.

    The devices may go on to use the memory of the parts.
    """
    made = buffers.of_parts([_parts_of(tensor, parts) for tensor, parts in given])
    for (tensor, _), buffer in zip(given, made, strict=True):
        value = Value(snapshot(tensor).spec, value_of(tensor).device, None, -1)
        value.buffer = buffer
        hold(tensor, value)
        mark = sharding_annotations.mark_of(tensor)
        if mark is not None:
            mark.seen = None


def _parts_of(tensor: torch.Tensor, parts: Sequence[torch.Tensor]) -> buffers.PartsByDevice:
    target, shape = value_of(tensor).device.target, tuple(tensor.shape)
    sharding, local = to_jax(planned_sharding(tensor), target), _in_order(target)
    whole, places = carried(shape, sharding), _places(shape, sharding)
    if len(parts) != len(local):
        raise RuntimeError(
            f"load_local_shards_(): got {len(parts)} shards for the {len(local)} devices of this process"
        )
    length = sharding.shard_shape(whole)
    for part, device in zip(parts, local, strict=True):
        size = _size(places[device])
        if tuple(part.shape) not in (size, length) or part.dtype != tensor.dtype:
            raise RuntimeError(
                f"load_local_shards_(): the shard for {platform.real_name(device)} is {part.dtype} of shape "
                f"{list(part.shape)}; expected {tensor.dtype} of {list(size)}"
            )
    hosts = [_padded(to_numpy(part), length) for part in parts]
    return buffers.PartsByDevice(whole, sharding, dict(zip(local, hosts, strict=True)))


def _padded(host: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    if host.shape == size:
        return host
    return np.pad(host, [(0, wanted - length) for length, wanted in zip(host.shape, size, strict=True)])
