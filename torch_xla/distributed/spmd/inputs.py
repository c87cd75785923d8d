"""Upload batches from the host to the devices of a mesh."""

import torch

from ..._engine import sharding as _sharding
from ..._engine.metrics import counter
from ..._engine.processes import process_count
from ..._engine.tensor import Device, upload_value
from ..._engine.tensor import wrap_value as wrap
from .mesh import Mesh, PartitionSpec, axes_of, devices_of_program, ids_of
from .tensor_sharding import hashable, parts_along

# Counts batches that the devices cannot share evenly and that are padded in memory.
_uneven = counter("UnevenInput")


def upload(t: torch.Tensor, device: Device, mesh: Mesh, partition_spec: PartitionSpec, minibatch: bool) -> torch.Tensor:
    """Return a tensor on `device` with the contents of `t`; each device of the mesh receives its own part."""
    dims = axes_of("ShardingSpec", mesh, hashable(partition_spec))
    if device.target.mesh is None and mesh.size() == 1:
        return wrap(upload_value(t, device))
    devices_of_program("ShardingSpec", mesh)
    minibatch = minibatch and process_count() > 1  # the part of one process alone is the batch
    size = list(t.shape)
    if minibatch:
        size[0] *= process_count()
    for dim, axes in enumerate(dims):
        parts = parts_along(mesh, axes)
        if size[dim] % parts:
            if minibatch:
                raise ValueError(
                    f"ShardingSpec(minibatch=True): dimension {dim} of the whole batch has {size[dim]} elements, which "
                    f"{parts} parts do not divide. Give every process equal batches (drop_last=True)."
                )
            _uneven.value += 1
    sharding = _sharding.sharding_over(device, ids_of(mesh), mesh.mesh_shape, dims)
    return wrap(upload_value(t, device, sharding, minibatch))
