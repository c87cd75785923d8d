"""Check that tensor, mesh and partition spec fit together, and build the engine's sharding."""

from collections.abc import Sequence

import torch

from ..._engine import runtime, sharding
from ..._engine.errors import MeshError
from ..._engine.ir import Dims, Sharding
from ..._engine.tensor import value_of
from .mesh import Mesh, PartitionSpec, axes_of, devices_of_program, ids_of


def dims_over(name: str, t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> Dims | None:
    """Return the axes of the mesh that divide each dimension of `t`; `None` for a mesh of the only device.

    Raises `ValueError` for the caller, `name`, if tensor, mesh and partition spec do not fit together.
    """
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"{name}(): expected a tensor, not a {type(t).__name__}")
    if partition_spec is None:
        whole = (None,) * t.dim()
        raise TypeError(f"{name}(): expected a partition spec, such as {whole} for a tensor that stays whole; got None")
    if t.device.type != "xla":
        raise ValueError(f"{name}(): expected a tensor on xla, not on {t.device}; move it there first")
    refuse_other_rank(name, t, partition_spec)
    dims = axes_of(name, mesh, hashable(partition_spec))
    if mesh.size() == 1 and value_of(t).device.spread is None:
        return None
    if value_of(t).device.spread is None and len(runtime.all_devices()) == mesh.size():
        raise RuntimeError(
            f"{name}(): the mesh has {mesh.size()} devices, and each of them is an ordinal of its own now. Call "
            f"torch_xla.runtime.use_spmd() first."
        )
    devices_of_program(name, mesh)
    return dims


def refuse_other_rank(name: str, t: torch.Tensor, partition_spec: PartitionSpec) -> None:
    """Raise an error for the caller, `name`, unless a partition spec has one entry for each dimension of `t`."""
    if t.dim() != len(partition_spec):
        raise MeshError(
            f"{name}(): the partition spec {partition_spec} has {len(partition_spec)} entries, but the tensor of shape "
            f"{list(t.shape)} has {t.dim()} dimensions; write None for those that stay whole"
        )


def parts_along(mesh: Mesh, axes: Sequence[int]) -> int:
    """Return the number of parts into which these axes of a mesh divide a dimension."""
    count = 1
    for axis in axes:
        count *= mesh.mesh_shape[axis]
    return count


def sharding_over(t: torch.Tensor, mesh: Mesh, dims: Dims) -> Sharding | None:
    """Return the engine's sharding of `t` by the axes `dims`."""
    mesh.op_sharding_along(dims)  # counted as PyTorch/XLA counts it
    device = value_of(t).device
    return sharding.sharding_over(device, ids_of(mesh), mesh.mesh_shape, dims)


def hashable(partition_spec: PartitionSpec) -> PartitionSpec:
    """Return the partition spec with tuples in place of lists."""
    return tuple(tuple(entry) if isinstance(entry, list) else entry for entry in partition_spec)
