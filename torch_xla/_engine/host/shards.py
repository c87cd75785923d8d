"""The parts of a divided value that this process holds: to the host and back."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..client import buffers, platform
from ..graph.tape import Value
from ..lowering.sharding import to_jax
from ..record import marks, placement
from ..record.storage import hold, snapshot, value_of
from ..record.sync import materialise
from ..record.upload import from_numpy, to_numpy


class Shard(NamedTuple):
    """One device's part of a value."""

    data: torch.Tensor  # on the CPU
    device: str  # as "CPU:0"
    indices: tuple[slice, ...]  # which elements of the whole
    replica: int  # 0, or which copy of this part it is

    @property
    def begin(self) -> tuple[int, ...]:
        """Where it begins in the whole."""
        return tuple(int(each.start) for each in self.indices)


def local_shards(tensor: torch.Tensor, replicas: bool = True) -> list[Shard]:
    """What each device of this process has of `tensor`, in the order of the devices. Waits for them.

    Without `replicas` each part is that of one device of the program.
    """
    buffer = materialise(snapshot(tensor))
    found = [shard for shard in buffer.addressable_shards if replicas or shard.replica_id == 0]
    return [
        Shard(
            from_numpy(np.array(shard.data)).to(tensor.dtype),
            platform.real_name(shard.device),
            tuple(slice(*each.indices(length)) for each, length in zip(shard.index, buffer.shape, strict=True)),
            shard.replica_id,
        )
        for shard in sorted(found, key=lambda shard: platform.ordinal_of(shard.device))
    ]


def local_places(tensor: torch.Tensor) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Where the part of each device of this process begins in `tensor`, and its size, in the order of the devices."""
    target = value_of(tensor).device.target
    shape = tuple(tensor.shape)
    sharding = to_jax(placement.planned(tensor), target)
    index = sharding.addressable_devices_indices_map(shape)
    local = sorted(target.local, key=platform.ordinal_of)
    size = sharding.shard_shape(shape)
    return [(tuple(each.start or 0 for each in index[device]), size) for device in local]


def load_local_shards(tensor: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Writes to `tensor` what each device of this process is to have of it, in the order of `local_shards`.

    Every process of the program brings its own. Raises `ValueError` for parts of another number or size.
    """
    value = value_of(tensor)
    target = value.device.target
    sharding = to_jax(placement.planned(tensor), target)
    local = sorted(target.local, key=platform.ordinal_of)
    size = sharding.shard_shape(tuple(tensor.shape))
    if len(parts) != len(local):
        raise ValueError(f"load_local_shards_(): got {len(parts)} shards for the {len(local)} devices of this process")
    for part, device in zip(parts, local, strict=True):
        if tuple(part.shape) != size or part.dtype != tensor.dtype:
            raise ValueError(
                f"load_local_shards_(): the shard for {platform.real_name(device)} is {part.dtype} of shape "
                f"{list(part.shape)}; expected {tensor.dtype} of {list(size)}"
            )
    made = Value(snapshot(tensor).spec, value.device, None, -1)
    hosts = [to_numpy(part.cpu()) for part in parts]
    made.buffer = buffers.of_parts(tuple(tensor.shape), sharding, dict(zip(local, hosts, strict=True)))
    hold(tensor, made)
    mark = marks.mark_of(tensor)
    if mark is not None:
        mark.seen = None
