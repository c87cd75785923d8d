"""Where `torch.distributed.tensor` hands over for a mesh of `xla` devices.

In a program of several processes without SPMD a mesh means processes, and `DTensor` is PyTorch's own. Under SPMD, or in
one process, it means devices: a tensor is its global value, which is marked, and "local" is what the process holds of
it. In one process that is all.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ... import runtime as xr
from ..._engine.client import processes, virtual
from ..._engine.distributed import backend
from ..._engine.record import marks
from .mesh import Mesh, PartitionSpec
from .tensor_sharding import dims_over, sharding_over
from .xla_sharded_tensor import XLAShardedTensor, redistribution
from .xla_sharding import mark_sharding, mark_sharding_with_gradients, unwrap_sharded_tensor

Partition = Callable[[str, nn.Module, DeviceMesh], None]


def with_xla(func: Callable[..., Any]) -> Callable[..., Any]:
    """`func`, which turns on SPMD first.

    >>> import torch_xla.runtime as xr
    >>> from torch_xla.distributed.spmd.api import with_xla
    >>> with_xla(xr.is_spmd)()
    True
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        xr.use_spmd()
        return func(*args, **kwargs)

    return wrapper


def convert_to_xla_mesh(dt_mesh: DeviceMesh) -> Mesh:
    """The mesh of a `DeviceMesh("xla", …)`, which has all devices of the program.

    >>> from torch.distributed.device_mesh import DeviceMesh
    >>> from torch_xla.distributed.spmd.api import convert_to_xla_mesh
    >>> convert_to_xla_mesh(DeviceMesh("xla", [0], mesh_dim_names=("x",)))
    Mesh([0], (1,), ('x',))
    """
    if dt_mesh.device_type != "xla":
        raise ValueError(f"convert_to_xla_mesh(): expected a mesh of xla devices, not of {dt_mesh.device_type!r}")
    ids = np.array(dt_mesh.mesh.tolist())
    return Mesh(ids.ravel(), ids.shape, dt_mesh.mesh_dim_names)


def convert_to_xla_partition_spec(tensor: torch.Tensor, placements: Sequence[Placement]) -> PartitionSpec:
    """For each dimension of `tensor` the axes of a mesh that divide it; `placements` has an entry for each axis.

    Raises `ValueError` for another placement than `Shard` and `Replicate`.

    >>> import torch
    >>> from torch.distributed.tensor import Replicate, Shard
    >>> from torch_xla.distributed.spmd.api import convert_to_xla_partition_spec
    >>> convert_to_xla_partition_spec(torch.ones(4, 2), [Shard(1), Replicate()])
    (None, 0)
    """
    found: list[list[int]] = [[] for _ in range(tensor.dim())]
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            found[placement.dim].append(axis)
        elif not isinstance(placement, Replicate):
            raise ValueError(
                f"placements on a mesh of xla devices are Shard(dim) and Replicate(), not {placement}: under SPMD a "
                "value is never a sum that is still to be taken"
            )
    return tuple(None if not axes else axes[0] if len(axes) == 1 else tuple(axes) for axes in found)


def xla_distribute_tensor(
    tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None
) -> Any:
    """`torch.distributed.tensor.distribute_tensor` on a mesh of `xla` devices: an `XLAShardedTensor`, a `DTensor`.

    `tensor` is the global value, on `xla` or on the CPU; `placements` has an entry for each axis of the mesh, by
    default a copy along each. Raises `ValueError` where they do not fit.
    """
    if _means_processes():
        return backend.distribute_tensor(tensor, device_mesh, placements)
    if placements is None:
        placements = [Replicate()] * device_mesh.ndim
    if len(placements) != device_mesh.ndim:
        raise ValueError(
            f"distribute_tensor(): {len(placements)} placements for a mesh of {device_mesh.ndim} axes; give each one"
        )
    if not tensor.is_leaf:
        raise RuntimeError("distribute_tensor() takes leaf tensors; this one was computed. Use DTensor.from_local.")
    whole = unwrap_sharded_tensor(tensor).detach().to("xla")
    mesh, spec = convert_to_xla_mesh(device_mesh), convert_to_xla_partition_spec(whole, placements)
    made = mark_sharding(whole, mesh, spec).on(device_mesh, placements)
    return made.requires_grad_(tensor.requires_grad)


def xla_distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Partition | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> nn.Module:
    """`torch.distributed.tensor.distribute_module` on a mesh of `xla` devices: the module, its parameters distributed.

    `partition_fn(name, module, mesh)` distributes those of each module inside; the others get copies.
    `input_fn(module, inputs, mesh)` and `output_fn(module, outputs, mesh)` see what goes in and comes out.
    """
    if _means_processes():
        return backend.distribute_module(module, device_mesh, partition_fn, input_fn, output_fn)  # type: ignore[no-any-return]
    if device_mesh is None:
        raise ValueError("distribute_module(): give the mesh, DeviceMesh('xla', …)")
    for name, inside in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, inside, device_mesh)
        for key, parameter in list(inside.named_parameters(recurse=False)):
            if not isinstance(parameter, XLAShardedTensor):
                copied = xla_distribute_tensor(parameter.detach(), device_mesh)
                inside.register_parameter(key, nn.Parameter(copied, parameter.requires_grad))
    if input_fn is not None:
        module.register_forward_pre_hook(lambda mod, inputs: input_fn(mod, inputs, device_mesh))
    if output_fn is not None:
        module.register_forward_hook(
            lambda mod, inputs, outputs: output_fn(mod, _known_on(outputs, device_mesh), device_mesh)
        )
    return module


def _means_processes() -> bool:
    return processes.process_count() > 1 and not virtual.is_on()


def _known_on(outputs: Any, device_mesh: DeviceMesh) -> Any:
    def known(value: Any) -> Any:
        is_plain = isinstance(value, torch.Tensor) and not isinstance(value, XLAShardedTensor)
        return XLAShardedTensor(value).on(device_mesh, ()) if is_plain and value.device.type == "xla" else value

    return torch.utils._pytree.tree_map(known, outputs)


def redistributed(t: XLAShardedTensor, device_mesh: DeviceMesh, placements: Sequence[Placement]) -> XLAShardedTensor:
    """The same value, divided so; gradients pass."""
    mesh, spec = convert_to_xla_mesh(device_mesh), convert_to_xla_partition_spec(t, placements)
    made = mark_sharding_with_gradients(t.shown, mesh, spec)
    dims = dims_over("redistribute", made, mesh, spec)
    if dims is not None:
        marks.remember(made, sharding_over(made, mesh, dims))
    return XLAShardedTensor(made).on(device_mesh, placements)


redistribution.append(redistributed)

_from_local: Any = DTensor.from_local


def _local_or_global(
    local_tensor: torch.Tensor, device_mesh: Any = None, placements: Any = None, **options: Any
) -> Any:
    if device_mesh is None or device_mesh.device_type != "xla" or _means_processes():
        return _from_local(local_tensor, device_mesh, placements, **options)
    if processes.process_count() > 1:
        raise NotImplementedError(
            "DTensor.from_local() on a mesh of xla devices in several processes: what this process has of a tensor "
            "comes by ShardingSpec(mesh, partition_spec, minibatch=True).upload(tensor)."
        )
    chosen = placements or [Replicate()] * device_mesh.ndim
    return redistributed(XLAShardedTensor(local_tensor.to("xla")), device_mesh, chosen)


DTensor.from_local = staticmethod(_local_or_global)  # type: ignore[method-assign, assignment]
