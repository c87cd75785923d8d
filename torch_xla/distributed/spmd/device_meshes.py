"""Tensors that are distributed over a `DeviceMesh` of `xla` devices and divided by XLA."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from ..._engine import distributed as _distributed
from ..._engine import processes, runtime, sharding, tensor
from ..._engine.compat import patch_list
from ..._engine.compat.names import torch_distributed
from ..._engine.compat.names.torch import pytree, without_torch_function
from .mesh import Mesh, PartitionSpec
from .tensor_sharding import dims_over, parts_along, sharding_over
from .xla_sharded_tensor import XLAShardedTensor, device_mesh_of, found_placements, local_part, redistribution, sharded
from .xla_sharding import mark_sharding, mark_sharding_with_gradients

Axes = tuple[int, ...]


class DistributedTensor(XLAShardedTensor):
    """An `XLAShardedTensor` over a `DeviceMesh`. Results of its operations are of this class too."""

    @classmethod
    def _computed(cls, result: object, args: object) -> "DistributedTensor":
        given = (each.device_mesh for each in pytree.tree_leaves(args) if isinstance(each, DistributedTensor))
        return known_on(result, next(given, None))

    def to_local(self, **options: object) -> torch.Tensor:
        """Return this process's part of the tensor, as a plain tensor, through which gradients flow."""
        with without_torch_function():
            return super().to_local(**options)

    def full_tensor(self, **options: object) -> torch.Tensor:
        """Return the value with a copy on every device, as a plain tensor. Gradients flow through."""
        with without_torch_function():
            return super().full_tensor(**options)

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        if id(self) not in memo:
            copied = DistributedTensor(self.global_tensor.detach().__deepcopy__(memo)).on(*self._on)
            is_parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(copied, False) if is_parameter else copied
            memo[id(self)].requires_grad_(self.requires_grad)
        return memo[id(self)]  # type: ignore[no-any-return]


def known_on(outputs: object, device_mesh: DeviceMesh | None) -> Any:
    """Replace each plain tensor on `xla` in a structure by a `DistributedTensor` over a mesh."""
    return sharded(outputs, lambda plain: DistributedTensor(plain).on(device_mesh, None))


@functools.lru_cache(maxsize=64)
def whole(device_mesh: DeviceMesh) -> Mesh:
    """Return the mesh of all devices; `device_mesh` is this mesh or a submesh of it."""
    root = torch_distributed.root_of(device_mesh)
    ids = np.array(root.mesh.tolist())
    return Mesh(ids.ravel(), ids.shape, root.mesh_dim_names)


@functools.lru_cache(maxsize=64)
def _device_mesh_of(shape: tuple[int, ...] | None, mesh: Mesh | None) -> DeviceMesh:
    """Return the `DeviceMesh` with the devices of `mesh`, by default with all devices in this shape or in a row."""
    if mesh is None:
        ids = torch.arange(len(runtime.all_devices()))
        return DeviceMesh("xla", ids if shape is None else ids.reshape(shape))
    return DeviceMesh("xla", torch.from_numpy(mesh.get_logical_mesh()), mesh_dim_names=mesh.axis_names)


@functools.lru_cache(maxsize=64)
def axes_of(device_mesh: DeviceMesh) -> list[Axes]:
    """Return, for each axis of a mesh, the axes of its `whole` mesh that it consists of, the outermost first."""
    grid = np.array(torch_distributed.root_of(device_mesh).mesh.tolist())
    own = np.array(device_mesh.mesh.tolist())
    return [_axes_along(grid, np.moveaxis(own, axis, 0).reshape(own.shape[axis], -1)[:, 0]) for axis in range(own.ndim)]


def _axes_along(grid: np.ndarray, line: np.ndarray) -> Axes:
    places = np.array([np.argwhere(grid == rank)[0] for rank in line])
    varying = [axis for axis in range(grid.ndim) if len(set(places[:, axis].tolist())) > 1]
    for order in itertools.permutations(varying):
        start: list[Any] = places[0].tolist()
        for axis in order:
            start[axis] = slice(None)
        block = grid[tuple(start)].transpose([sorted(order).index(axis) for axis in order])
        if block.ravel().tolist() == line.tolist():
            return order
    raise ValueError(f"expected a mesh along axes of the mesh {grid.tolist()}; got the devices {line.tolist()}")


def spec_of(name: str, t: torch.Tensor, placements: Sequence[Placement], axes: Sequence[Axes]) -> PartitionSpec:
    """Return the axes of the whole mesh that divide each dimension of `t`. Errors name the caller, `name`."""
    found: list[list[int]] = [[] for _ in range(t.dim())]
    for own, given in zip(axes, placements, strict=True):
        if isinstance(given, Shard):
            found[given.dim] += own
        elif not isinstance(given, Replicate):
            raise ValueError(
                f"{name}(): expected the placements Shard(dim) or Replicate(), which XLA can divide by; got {given}"
            )
    return tuple(None if not own else own[0] if len(own) == 1 else tuple(own) for own in found)


def _placements(name: str, t: torch.Tensor, mesh: DeviceMesh, given: Sequence[Placement] | None) -> list[Placement]:
    chosen = [Replicate()] * mesh.ndim if given is None else list(given)
    if len(chosen) != mesh.ndim:
        raise ValueError(f"{name}(): {len(chosen)} placements for a mesh of {mesh.ndim} axes; give one for each axis")
    for each in chosen:
        if isinstance(each, Shard) and not -t.dim() <= each.dim < t.dim():
            raise IndexError(
                f"{name}(): {each!r} divides a dimension that a tensor of shape {list(t.shape)} does not have"
            )
    return [Shard(each.dim % t.dim()) if isinstance(each, Shard) else each for each in chosen]


def distributed(name: str, t: torch.Tensor, mesh: DeviceMesh, given: Sequence[Placement] | None) -> XLAShardedTensor:
    """Mark `t`, a tensor on `xla`, with these placements; for `Partial`, XLA decides when to compute the sum."""
    placements = _placements(name, t, mesh, given)
    if not any(isinstance(each, Partial) for each in placements):
        spec = spec_of(name, t, placements, axes_of(mesh))
        mark_sharding(t, whole(mesh), spec)
        return DistributedTensor(t, whole(mesh).mesh_shape, spec).over(whole(mesh)).on(mesh, placements)
    return DistributedTensor(t).on(mesh, placements)


def redistributed(t: XLAShardedTensor, mesh: DeviceMesh | Mesh, given: Sequence[Placement]) -> XLAShardedTensor:
    """Divide the same value in another way; gradients flow through. Raises `NotImplementedError` for `Partial`."""
    if isinstance(mesh, Mesh):
        mesh = _device_mesh_of(mesh.mesh_shape, mesh)
    placements = _placements("redistribute", t, mesh, given)
    if any(isinstance(each, Partial) for each in placements):
        raise NotImplementedError(
            f"redistribute(): only a computation makes a value {placements}; give Shard(dim) or Replicate()"
        )
    grid, spec = whole(mesh), spec_of("redistribute", t, placements, axes_of(mesh))
    made = mark_sharding_with_gradients(t.shown, grid, spec)
    dims = dims_over("redistribute", made, grid, spec)
    if dims is not None:
        tensor.remember_sharding(made, sharding_over(made, grid, dims))
    return DistributedTensor(made, grid.mesh_shape, spec).over(grid).on(mesh, placements)


def _found(t: XLAShardedTensor) -> tuple[Placement, ...]:
    """Return the placement of a tensor along each axis of its mesh. If XLA decides it, compute the tensor."""
    plain, grid = t.global_tensor, whole(t.device_mesh)
    lies = sharding.planned_sharding(plain) if sharding.is_sharding_known(plain) else sharding.sharding_of(plain)
    by_dim = [set(axes) for axes in lies.dims] if lies is not None else []
    found: list[Placement] = []
    for axes in axes_of(t.device_mesh):
        one = sharding_over(plain, grid, (axes,)) if axes else None
        parts = set(one.dims[0]) if one is not None else set()
        dims = [dim for dim, own in enumerate(by_dim) if own & parts]
        if dims and not parts <= by_dim[dims[0]]:
            raise RuntimeError(
                f"placements: XLA divides this tensor of shape {list(t.shape)} as {t.sharding_spec}, which no "
                "placement along an axis of the mesh describes. Call redistribute() with the placements that you want."
            )
        found.append(Shard(dims[0]) if dims else Replicate())
    return tuple(found)


redistribution.append(redistributed)
device_mesh_of.append(_device_mesh_of)
found_placements.append(_found)


def _local_or_global(original: Any) -> Any:
    def from_local(
        local_tensor: torch.Tensor, device_mesh: Any = None, placements: Any = None, **options: Any
    ) -> torch.Tensor:
        mesh = device_mesh or torch_distributed.current_mesh()
        if mesh.device_type != "xla" or _distributed.mesh_means_processes():
            return original(local_tensor, device_mesh, placements, **options)  # type: ignore[no-any-return]
        return _global(local_tensor, mesh, placements)

    return staticmethod(from_local)


def _global(local_tensor: torch.Tensor, mesh: DeviceMesh, placements: Any) -> XLAShardedTensor:
    if isinstance(local_tensor, DTensor):
        raise RuntimeError("DTensor.from_local() takes a plain tensor, and this one is distributed: redistribute() it.")
    if processes.process_count() > 1:
        chosen = _placements("from_local", local_tensor, mesh, placements)
        if local_tensor.requires_grad and local_tensor.device.type == "xla":
            raise NotImplementedError(
                "DTensor.from_local() in several processes under SPMD: the gradient of what one process has is not "
                "that of the others, and a tensor on xla is one for all. Keep the local tensor on the CPU."
            )
        return DistributedTensor(_FromLocal.apply(local_tensor, mesh, chosen)).on(mesh, chosen)
    there = local_tensor.to("xla")
    chosen = _placements("from_local", there, mesh, placements)
    if any(isinstance(each, Partial) for each in chosen):
        return DistributedTensor(there.view_as(there)).on(mesh, chosen)
    return redistributed(DistributedTensor(there), mesh, chosen)


class _FromLocal(torch.autograd.Function):
    """Combine the host tensors of all processes to one tensor of all devices."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, mesh: DeviceMesh, placements: list[Placement]) -> torch.Tensor:
        """Return the tensor of all devices; sum a `Partial`."""
        ctx.on = mesh, [Replicate() if isinstance(each, Partial) else each for each in placements]
        data, sums = local.detach().cpu(), [each for each in placements if isinstance(each, Partial)]
        if not sums:
            return _of_parts(data, mesh, placements)
        moved = _side_by_side(placements)
        stack = data.reshape(*[1] * len(sums), *data.shape)
        _, count = _held(mesh, spec_of("from_local", stack, moved, axes_of(mesh)))
        for dim, each in enumerate(sums):
            neutral = _REDUCTIONS[each.reduce_op][1]
            rest = [stack if neutral is None else torch.full_like(stack, neutral)] * (int(count[dim]) - 1)
            stack = torch.cat([stack, *rest], dim)
        made = _of_parts(stack, mesh, moved)
        for each in sums:
            made = _REDUCTIONS[each.reduce_op][0](made, 0)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        """Return the gradient of `local`: the part of this process, on the CPU."""
        return own_part(redistributed(DistributedTensor(gradient), *ctx.on).global_tensor), None, None


def _side_by_side(placements: Sequence[Placement]) -> list[Placement]:
    """Return placements for values that are to be summed: each `Partial` divides a new leading dimension."""
    count, found = sum(isinstance(each, Partial) for each in placements), list(placements)
    place = 0
    for axis, each in enumerate(placements):
        if isinstance(each, Shard):
            found[axis] = Shard(each.dim + count)
        elif isinstance(each, Partial):
            found[axis] = Shard(place)
            place += 1
    return found


# How values of processes become one, and what one beside them is that changes nothing; `None`: they themselves.
_REDUCTIONS: dict[str, tuple[Any, int | None]] = {
    "sum": (torch.sum, 0),
    "avg": (torch.mean, None),
    "max": (torch.amax, None),
    "min": (torch.amin, None),
    "product": (torch.prod, 1),
}


def _held(mesh: DeviceMesh, spec: PartitionSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of this process's first part along each dimension, and the number of its parts."""
    # Each part is one element of this.
    units = [1 if axes is None else parts_along(whole(mesh), np.ravel(axes).tolist()) for axes in spec]
    places = sharding.local_places(mark_sharding(torch.empty(units, device="xla"), whole(mesh), spec).global_tensor)
    first = np.min([begin for begin, _ in places], axis=0, initial=max(units, default=0))
    count = np.max([np.add(begin, size) for begin, size in places], axis=0, initial=0) - first
    if len({begin for begin, _ in places}) != count.prod():
        raise ValueError(f"DTensor: this process has parts of a tensor divided as {spec} that do not form one block")
    return first, count


def _of_parts(local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> torch.Tensor:
    """Combine the CPU tensors of all processes to one tensor."""
    spec = spec_of("from_local", local, placements, axes_of(mesh))
    first, count = _held(mesh, spec)
    if any(np.array(local.shape) % count):
        raise ValueError(
            f"DTensor.from_local(): this process has {count.tolist()} parts of a tensor with the placements "
            f"{list(placements)}, which do not divide a local tensor of shape {list(local.shape)}"
        )
    units = [1 if axes is None else parts_along(whole(mesh), np.ravel(axes).tolist()) for axes in spec]
    sizes, start = (np.array(local.shape) // count * number for number in (units, first))
    empty = torch.empty(sizes.tolist(), dtype=local.dtype, device="xla")
    made = distributed("from_local", empty, mesh, placements).global_tensor
    sharding.load_local_shards(
        made,
        [
            local[tuple(slice(b - s, b - s + n) for b, s, n in zip(begin, start.tolist(), size, strict=True))]
            for begin, size in sharding.local_places(made)
        ],
    )
    return made


def own_part(t: torch.Tensor) -> torch.Tensor:
    """Assemble the shards of a tensor on the devices of this process to one tensor on the CPU. Waits for the devices.

    Raises `ValueError` if these shards do not form a block of the tensor.
    """
    parts = sharding.local_shards(t)
    first = [min(part.begin[dim] for part in parts) for dim in range(t.dim())]
    size = [max(part.indices[dim].stop for part in parts) - first[dim] for dim in range(t.dim())]
    if sum({part.begin: part.data.numel() for part in parts}.values()) != np.prod(size, dtype=int):
        raise ValueError(
            f"to_local(): this process has parts of the tensor of shape {list(t.shape)} that do not form one block; "
            "read local_shards"
        )
    made = torch.empty(size, dtype=t.dtype)
    for part in parts:
        made[tuple(slice(b.start - s, b.stop - s) for b, s in zip(part.indices, first, strict=True))] = part.data
    return made


class _ToLocal(torch.autograd.Function):
    """The part of a distributed tensor that this process holds, on the CPU."""

    @staticmethod
    def forward(ctx: Any, shown: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> torch.Tensor:
        """Return the part of this process, on the CPU."""
        ctx.on = mesh, placements
        return own_part(shown)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        """Return the gradient of `shown` from those of all processes, divided as `shown` is."""
        return _of_parts(gradient, *ctx.on), None, None


def _local(t: XLAShardedTensor) -> torch.Tensor:
    if not t.requires_grad or t.device_mesh is None:
        return own_part(t.global_tensor)
    there = [Replicate() if isinstance(each, Partial) else each for each in t.placements]
    made: torch.Tensor = _ToLocal.apply(t.shown, t.device_mesh, there)
    return made


def _constructed(function: Any, size: object, mesh: DeviceMesh, placements: Any, **options: Any) -> DTensor:
    requires_grad, fill = options.pop("requires_grad", False), options.pop("fill_value", None)
    made = function(size, *(() if fill is None else (fill,)), **{**options, "device": "xla"})
    made = distributed(function.__name__, made, mesh, placements)
    made.requires_grad_(requires_grad)
    return made


@functools.cache
def serve_meshes_of_devices() -> None:
    """Make the functions of `torch.distributed.tensor` divide tensors over meshes of devices.

    Called when the first such mesh is made: programs with meshes of processes alone keep PyTorch's own functions.
    """
    patch_list.from_local.wrap(_local_or_global)
    torch_distributed.give_constructors(
        lambda mesh: mesh.device_type == "xla" and not _distributed.mesh_means_processes(), _constructed
    )


local_part.append(_local)
