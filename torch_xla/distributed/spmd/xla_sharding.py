"""Meshes, and which dimension of a tensor is divided along which axis of a mesh."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from ..._engine.client import platform

# For each dimension of a tensor: None (not divided), an axis of the mesh by name or index, or a tuple of axes.
PartitionSpec = tuple[tuple[int | str, ...] | int | str | None, ...]


class Mesh:
    """Devices in a grid whose axes may have names.

    `device_ids` are the numbers from 0 to `n - 1` in any order, as an array or a list; `mesh_shape` is the shape of the
    grid, of `n` elements; `axis_names` has one distinct name for each axis. Raises `ValueError` where they do not fit.

    >>> import numpy as np
    >>> from torch_xla.distributed.spmd import Mesh
    >>> mesh = Mesh(np.arange(8), (4, 2), ("data", "model"))
    >>> mesh.size(), dict(mesh.shape())
    (8, {'data': 4, 'model': 2})
    """

    def __init__(
        self,
        device_ids: np.ndarray | Sequence[int],
        mesh_shape: tuple[int, ...],
        axis_names: tuple[str, ...] | None = None,
    ) -> None:
        ids = np.array(device_ids)
        if ids.size != prod(mesh_shape):
            raise ValueError(f"Mesh(): {ids.size} device ids do not fill a mesh of shape {tuple(mesh_shape)}")
        if sorted(ids.ravel().tolist()) != list(range(ids.size)):
            raise ValueError(f"Mesh(): device ids are {ids.ravel().tolist()}; expected 0 to {ids.size - 1}, each once")
        if axis_names is not None and len(axis_names) != len(mesh_shape):
            raise ValueError(f"Mesh(): {len(axis_names)} axis names for {len(mesh_shape)} axes: {axis_names}")
        if axis_names is not None and len(set(axis_names)) != len(axis_names):
            raise ValueError(f"Mesh(): an axis name stands twice in {axis_names}")
        self.device_ids = ids.ravel()
        self.mesh_shape = tuple(mesh_shape)
        self.axis_names = None if axis_names is None else tuple(axis_names)

    def size(self) -> int:
        """How many devices the mesh has."""
        return prod(self.mesh_shape)

    def shape(self) -> "OrderedDict[str | int, int]":
        """The size of each axis by its name, or by its index if the axes have no names."""
        return OrderedDict(zip(self.axis_names or range(len(self.mesh_shape)), self.mesh_shape, strict=True))

    def get_logical_mesh(self) -> np.ndarray:
        """The device ids in the shape of the mesh.

        >>> from torch_xla.distributed.spmd import Mesh
        >>> Mesh([0, 1], (2, 1)).get_logical_mesh().tolist()
        [[0], [1]]
        """
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """The index of the axis called `name`; `None` if there is none."""
        return self.axis_names.index(name) if self.axis_names and name in self.axis_names else None

    def __repr__(self) -> str:
        return f"Mesh({self.device_ids.tolist()}, {self.mesh_shape}, {self.axis_names})"


class HybridMesh(Mesh):
    """A mesh over several slices of a TPU: axis by axis the devices of a slice times the slices.

    `ici_mesh_shape` is the mesh within a slice, `dcn_mesh_shape` that of the slices, by default one slice. Raises
    `NotImplementedError` for several slices.

    >>> from torch_xla.distributed.spmd import HybridMesh
    >>> dict(HybridMesh(ici_mesh_shape=(1, 1), axis_names=("data", "model")).shape())
    {'data': 1, 'model': 1}
    """

    def __init__(
        self,
        *,
        ici_mesh_shape: tuple[int, ...],
        dcn_mesh_shape: tuple[int, ...] | None = None,
        axis_names: tuple[str, ...] | None = None,
    ) -> None:
        if prod(dcn_mesh_shape or ()) > 1:
            raise NotImplementedError(
                f"HybridMesh(dcn_mesh_shape={dcn_mesh_shape}): meshes over several slices are not in this version of "
                f"torch_xla. Describe one slice with Mesh, or with dcn_mesh_shape=None."
            )
        self.ici_mesh_shape = tuple(ici_mesh_shape)
        self.dcn_mesh_shape = tuple(dcn_mesh_shape or (1,) * len(ici_mesh_shape))
        super().__init__(np.arange(prod(ici_mesh_shape)), self.ici_mesh_shape, axis_names)


_global_mesh: Mesh | None = None


def set_global_mesh(mesh: Mesh) -> None:
    """Makes `mesh` the one that is meant where none is given.

    >>> import torch_xla.distributed.spmd as xs
    >>> xs.set_global_mesh(xs.Mesh([0], (1,), ("data",)))
    >>> xs.get_global_mesh()
    Mesh([0], (1,), ('data',))
    """
    global _global_mesh
    if not isinstance(mesh, Mesh):
        raise TypeError(f"set_global_mesh(): expected a Mesh, not {type(mesh).__name__}")
    _global_mesh = mesh


def get_global_mesh() -> Mesh | None:
    """The mesh of `set_global_mesh`; `None` if there is none."""
    return _global_mesh


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """A mesh of all devices along one axis. Starts the client.

    >>> import torch_xla.distributed.spmd as xs
    >>> xs.get_1d_mesh("data").axis_names
    ('data',)
    """
    count = len(platform.local_devices())
    return Mesh(np.arange(count), (count,), None if axis_name is None else (axis_name,))


@dataclass
class ShardingSpec:
    """How the batches of a loader are divided: `input_sharding=` of `MpDeviceLoader`.

    `partition_spec` is that of `mark_sharding`. `minibatch`: each process loads its own part of the batch.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> spec = xs.ShardingSpec(xs.Mesh([0], (1,), ("data",)), ("data", None))
    >>> spec.can_apply(torch.ones(4, 2)), spec.can_apply(torch.ones(4))
    (True, False)
    """

    mesh: Mesh
    partition_spec: PartitionSpec
    minibatch: bool | None = False

    def __post_init__(self) -> None:
        _check_axes("ShardingSpec", self.mesh, self.partition_spec)

    def can_apply(self, t: torch.Tensor) -> bool:
        """Whether `t` has as many dimensions as the spec."""
        return t.dim() == len(self.partition_spec)

    def apply(self, t: torch.Tensor) -> None:
        """Marks `t`, a tensor on `xla` with as many dimensions as the spec."""
        mark_sharding(t, self.mesh, self.partition_spec)


def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """Divides `t`, a tensor on `xla`, over `mesh`, and returns it. On a mesh of one device it stays as it is.

    `partition_spec` has an entry for each dimension of `t`: `None` leaves it whole, the name or index of an axis
    divides it along that axis, a tuple of them along all. Raises `ValueError` where it does not fit the tensor or the
    mesh, and `NotImplementedError` for a mesh of several devices.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> mesh = xs.Mesh([0], (1, 1), ("data", "model"))
    >>> xs.mark_sharding(torch.ones(2, 2, device="xla"), mesh, ("data", None)).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    _check("mark_sharding", t, mesh, partition_spec)
    return t


def mark_sharding_with_gradients(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """As `mark_sharding`, of a new tensor with the value of `t` and of its gradient.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> x = torch.ones(2, device="xla", requires_grad=True)
    >>> xs.mark_sharding_with_gradients(x * 2, xs.Mesh([0], (1,)), (0,)).sum().backward()
    >>> x.grad.tolist()
    [2.0, 2.0]
    """
    _check("mark_sharding_with_gradients", t, mesh, partition_spec)
    return t.view_as(t)


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Makes `t` whole again, and returns it. On one device it always is."""
    return t


def _check(name: str, t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> None:
    if t.device.type != "xla":
        raise ValueError(f"{name}(): expected a tensor on xla, not on {t.device}; move it there first")
    if t.dim() != len(partition_spec):
        raise ValueError(
            f"{name}(): the partition spec {partition_spec} has {len(partition_spec)} entries, but the tensor of shape "
            f"{list(t.shape)} has {t.dim()} dimensions; write None for those that stay whole"
        )
    _check_axes(name, mesh, partition_spec)
    if mesh.size() > 1:
        raise NotImplementedError(
            f"{name}(): the mesh has {mesh.size()} devices, and sharding over several devices is not in this version "
            f"of torch_xla. Each `xla:N` is a device of its own; use a mesh of one."
        )


def _check_axes(name: str, mesh: Mesh, partition_spec: PartitionSpec) -> None:
    axes = list(_axes_of(partition_spec))
    for axis in axes:
        known = (
            mesh.get_axis_name_idx(axis) is not None
            if isinstance(axis, str)
            else isinstance(axis, int) and 0 <= axis < len(mesh.mesh_shape)
        )
        if not known:
            raise ValueError(f"{name}(): the mesh has no axis {axis!r}; it has {list(mesh.shape())}")
    indices = [mesh.get_axis_name_idx(axis) if isinstance(axis, str) else axis for axis in axes]
    if len(set(indices)) != len(indices):
        raise ValueError(f"{name}(): an axis of the mesh stands twice in the partition spec {partition_spec}")


def _axes_of(partition_spec: PartitionSpec) -> Iterator[Any]:
    for entry in partition_spec:
        if isinstance(entry, tuple | list):
            yield from entry
        elif entry is not None:
            yield entry
