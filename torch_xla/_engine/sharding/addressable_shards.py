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
        return self.padded[tuple(slice(each.stop - each.start) for each in self.indices)]

    @property
    def begin(self) -> tuple[int, ...]:
        """Return the offset in the whole tensor."""
        return tuple(int(each.start) for each in self.indices)


def local_shards(tensor: torch.Tensor, replicas: bool = True) -> list[Shard]:
    """Return the shard of `tensor` on each device of this process, in the order of the devices. Waits for them.

    Without `replicas`, each shard is returned on one device of the program only.
    """
    sharding_annotations.keep_now(tensor)
    buffer = materialise(snapshot(tensor))
    if buffer.ndim != tensor.dim():
        return _values_of_devices(tensor, buffer)
    found = [shard for shard in buffer.addressable_shards if replicas or shard.replica_id == 0]
    return [
        Shard(
            from_numpy(np.array(shard.data)).to(tensor.dtype),
            platform.real_name(shard.device),
            _within(shard.index, tuple(tensor.shape)),
            shard.replica_id,
        )
        for shard in sorted(found, key=lambda shard: platform.ordinal_of(shard.device))
    ]


def local_arrays(tensor: torch.Tensor) -> dict[tuple[int, ...], np.ndarray]:
    """Return the different shards that this process has, by their offsets. Waits for them.

    An array may be the memory of its device, and cannot be written to.
    """
    sharding_annotations.keep_now(tensor)
    buffer = materialise(snapshot(tensor))
    if buffer.ndim != tensor.dim() or dtypes.to_torch(buffer.dtype) != tensor.dtype:
        return {shard.begin: to_numpy(shard.data) for shard in local_shards(tensor)}
    found = {}
    for shard in buffer.addressable_shards:
        within = _within(shard.index, tuple(tensor.shape))
        begin = tuple(int(each.start) for each in within)
        if begin not in found:
            found[begin] = np.asarray(shard.data)[tuple(slice(each.stop - each.start) for each in within)]
    return found


def _values_of_devices(tensor: torch.Tensor, buffer: Any) -> list[Shard]:
    """Return the values of a tensor in a manual region, where each device has its own value."""
    everything = tuple(slice(0, length, 1) for length in tensor.shape)
    return [
        Shard(from_numpy(np.array(shard.data)[0]).to(tensor.dtype), platform.real_name(shard.device), everything, 0)
        for shard in sorted(buffer.addressable_shards, key=lambda shard: platform.ordinal_of(shard.device))
    ]


def _within(index: Sequence[slice], size: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the slices of a value of this size, which those of its array may exceed."""
    starts = [min(each.start or 0, length) for each, length in zip(index, size, strict=True)]
    ends = [length if each.stop is None else min(each.stop, length) for each, length in zip(index, size, strict=True)]
    return tuple(slice(start, end, 1) for start, end in zip(starts, ends, strict=True))


def local_places(tensor: torch.Tensor) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return offset and size in `tensor` of the shard on each device of this process, in the order of the devices."""
    target = value_of(tensor).device.target
    shape = tuple(tensor.shape)
    sharding = to_jax(planned_sharding(tensor), target)
    index = sharding.addressable_devices_indices_map(carried(shape, sharding))
    local = sorted(target.local, key=platform.ordinal_of)
    places = [_within(index[device], shape) for device in local]
    return [(tuple(each.start for each in place), tuple(each.stop - each.start for each in place)) for place in places]


def load_local_shards(tensor: torch.Tensor, parts: Sequence[torch.Tensor], shares: bool = False) -> None:
    """Write to `tensor` the shard of each device of this process, in the order of `local_places`.

    Every process of the program brings its own. Where the devices do not divide the whole evenly, parts may have the
    padding of `Shard.padded`. With `shares` the devices may go on to use the memory of the parts. Raises `RuntimeError`
    for parts of another number or size.
    """
    value = value_of(tensor)
    target = value.device.target
    sharding = to_jax(planned_sharding(tensor), target)
    local = sorted(target.local, key=platform.ordinal_of)
    whole = carried(tuple(tensor.shape), sharding)
    if len(parts) != len(local):
        raise RuntimeError(
            f"load_local_shards_(): got {len(parts)} shards for the {len(local)} devices of this process"
        )
    length = sharding.shard_shape(whole)
    for part, device, (_, size) in zip(parts, local, local_places(tensor), strict=True):
        if tuple(part.shape) not in (size, length) or part.dtype != tensor.dtype:
            raise RuntimeError(
                f"load_local_shards_(): the shard for {platform.real_name(device)} is {part.dtype} of shape "
                f"{list(part.shape)}; expected {tensor.dtype} of {list(size)}"
            )
    made = Value(snapshot(tensor).spec, value.device, None, -1)
    hosts = [to_numpy(part.cpu()) for part in parts]
    hosts = [host if shares and host.shape == length else _padded(host, length) for host in hosts]
    made.buffer = buffers.of_parts(whole, sharding, dict(zip(local, hosts, strict=True)))
    hold(tensor, made)
    mark = sharding_annotations.mark_of(tensor)
    if mark is not None:
        mark.seen = None


def _padded(host: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    return np.pad(host, [(0, wanted - length) for length, wanted in zip(host.shape, size, strict=True)])
