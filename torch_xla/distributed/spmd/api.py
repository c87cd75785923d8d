"""The functions that `torch.distributed.tensor` calls for a mesh of `xla` devices.

In a program of several processes without SPMD, a mesh is a mesh of processes, and `DTensor` is PyTorch's own. Under
SPMD, and in one process, a mesh is a mesh of devices: a tensor is the global value, with a mark, and the "local" tensor
is the part that this process holds. With one process, that is the whole tensor.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement

from ..._engine import distributed as _distributed
from ..._engine import planning, sharding
from .device_meshes import distributed, known_on, spec_of, whole
from .mesh import Mesh, PartitionSpec
from .xla_sharded_tensor import XLAShardedTensor
from .xla_sharding import unwrap_sharded_tensor

P = ParamSpec("P")
R = TypeVar("R")

Partition = Callable[[str, nn.Module, DeviceMesh], None]

# Why `torch.compile` leaves its graphs for what a style of parallelism does.
_BETWEEN = "what goes into a distributed module, and comes out, is divided between graphs"


def with_xla(func: Callable[P, R]) -> Callable[P, R]:
    """Return `func` wrapped so that it first turns on SPMD.

    >>> import torch_xla.runtime as xr
    >>> from torch_xla.distributed.spmd.api import with_xla
    >>> with_xla(xr.is_spmd)()
    True
    """

    @functools.wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        sharding.use_all_devices()
        return func(*args, **kwargs)

    return wrapper


def auto_policy(mod_name: str, mod: nn.Module, mesh: DeviceMesh) -> None:
    """Find a layout for the parameters, as `use_spmd(auto=True)` does. This is a `partition_fn` of `distribute_module`.

    >>> from torch_xla.distributed.spmd.api import auto_policy
    >>> auto_policy("", torch.nn.Linear(2, 2), None)
    """


def convert_to_xla_mesh(dt_mesh: DeviceMesh) -> Mesh:
    """Convert a `DeviceMesh("xla", …)` to a `Mesh` of all devices of the program; for a submesh, convert its root mesh.

    >>> from torch.distributed.device_mesh import DeviceMesh
    >>> from torch_xla.distributed.spmd.api import convert_to_xla_mesh
    >>> convert_to_xla_mesh(DeviceMesh("xla", [0], mesh_dim_names=("x",)))
    Mesh([0], (1,), ('x',))
    """
    if dt_mesh.device_type != "xla":
        raise ValueError(f"convert_to_xla_mesh(): expected a mesh of xla devices, not of {dt_mesh.device_type!r}")
    return whole(dt_mesh)


def convert_to_xla_partition_spec(tensor: torch.Tensor, placements: Sequence[Placement]) -> PartitionSpec:
    """Return the mesh axes that divide each dimension of `tensor`; `placements` has an entry for each axis.

    Raises `ValueError` for any placement except `Shard` and `Replicate`.

    >>> import torch
    >>> from torch.distributed.tensor import Replicate, Shard
    >>> from torch_xla.distributed.spmd.api import convert_to_xla_partition_spec
    >>> convert_to_xla_partition_spec(torch.ones(4, 2), [Shard(1), Replicate()])
    (None, 0)
    """
    axes = [(axis,) for axis in range(len(placements))]
    return spec_of("convert_to_xla_partition_spec", tensor, placements, axes)


def xla_distribute_tensor(
    tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None
) -> torch.Tensor:
    """Distribute a tensor over a mesh of `xla` devices, as an `XLAShardedTensor`, which is a `DTensor`.

    This implements `torch.distributed.tensor.distribute_tensor`. `tensor` is the global value, on `xla` or on the CPU.
    `placements` has an entry for each axis of the mesh; the default replicates along each axis. With a submesh,
    `mesh["model"]`, the tensor is replicated along the other axes. The value of a `Partial` tensor is the whole sum,
    and XLA decides where to compute the sum. Raises `ValueError` if tensor, mesh and placements do not fit together.
    """
    if _distributed.mesh_means_processes():
        return _distributed.distribute_tensor(tensor, device_mesh, placements)
    if not tensor.is_leaf:
        raise RuntimeError("distribute_tensor() takes leaf tensors; this one was computed. Use DTensor.from_local.")
    there = unwrap_sharded_tensor(tensor).detach().to("xla")
    made = distributed("distribute_tensor", there, device_mesh, placements)
    return made.requires_grad_(tensor.requires_grad)


def xla_distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Partition | None = None,
    input_fn: Callable[..., object] | None = None,
    output_fn: Callable[..., object] | None = None,
) -> nn.Module:
    """Distribute the parameters of a module over a mesh of `xla` devices, and return the module.

    This implements `torch.distributed.tensor.distribute_module`. `partition_fn(name, module, mesh)` distributes the
    parameters of each submodule; other parameters are replicated. `input_fn(module, inputs, mesh)` and
    `output_fn(module, outputs, mesh)` transform inputs and outputs; without the first argument they are deprecated.
    """
    if _distributed.mesh_means_processes():
        return _distributed.distribute_module(module, device_mesh, partition_fn, input_fn, output_fn)  # type: ignore[no-any-return]
    if device_mesh is None:
        raise ValueError("distribute_module(): give the mesh, DeviceMesh('xla', …)")
    if partition_fn is auto_policy:
        sharding.use_all_devices()
        planning.turn_on_automatic_sharding(convert_to_xla_mesh(device_mesh).mesh_shape)
        module.to("xla")
    for name, inside in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, inside, device_mesh)
        for key, parameter in list(inside.named_parameters(recurse=False)):
            if not isinstance(parameter, XLAShardedTensor) and partition_fn is not auto_policy:
                copied = xla_distribute_tensor(parameter.detach(), device_mesh)
                inside.register_parameter(key, nn.Parameter(copied, parameter.requires_grad))
    if input_fn is not None:
        prepare = _with_module("input_fn", input_fn)
        before = torch.compiler.disable(lambda mod, inputs: prepare(mod, inputs, device_mesh), reason=_BETWEEN)
        module.register_forward_pre_hook(before)
    if output_fn is not None:
        finish = _with_module("output_fn", output_fn)
        after = torch.compiler.disable(
            lambda mod, inputs, outputs: finish(mod, known_on(outputs, device_mesh), device_mesh), reason=_BETWEEN
        )
        module.register_forward_hook(after)
    return module


def _with_module(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """Return `function` as one of a module, values and a mesh; without the first of these, it is deprecated."""
    count = len(inspect.signature(function).parameters)
    if count == 3:
        return function
    if count != 2:
        raise ValueError(f"distribute_module(): {name} takes (module, values, mesh); this one takes {count} arguments")
    warnings.warn(
        f"distribute_module(): {name}(values, mesh) is deprecated; write {name}(module, values, mesh)",
        FutureWarning,
        stacklevel=3,
    )
    return lambda _, values, mesh: function(values, mesh)
