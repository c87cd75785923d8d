"""Meshes: devices in a grid whose axes have names."""

import functools
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import cast

import jax
import numpy as np

from ..._engine import planning, runtime, sharding
from ..._engine.errors import MeshError
from ..._engine.ir import Dims, OpSharding, dims_of, literal, tiling

# For each dimension of a tensor: None (not divided), an axis of the mesh by name or index, or a tuple of axes.
PartitionSpec = tuple[tuple[int | str, ...] | int | str | None, ...]


class Mesh:
    """Devices in a grid whose axes may have names.

    `device_ids` are the numbers from 0 to `n - 1` in any order, as an array or a list; `mesh_shape` is the shape of the
    grid, with `n` elements; `axis_names` has one distinct name for each axis. If they do not fit, raises an error
    that is a `ValueError` and, as in PyTorch/XLA, an `AssertionError`.

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
            raise MeshError(f"Mesh(): {ids.size} device ids do not fill a mesh of shape {tuple(mesh_shape)}")
        if sorted(ids.ravel().tolist()) != list(range(ids.size)):
            raise MeshError(f"Mesh(): device ids are {ids.ravel().tolist()}; expected 0 to {ids.size - 1}, each once")
        if axis_names is not None and len(axis_names) != len(mesh_shape):
            raise MeshError(f"Mesh(): {len(axis_names)} axis names for {len(mesh_shape)} axes: {axis_names}")
        if axis_names is not None and len(set(axis_names)) != len(axis_names):
            raise MeshError(f"Mesh(): an axis name occurs twice in {axis_names}")
        self.device_ids = ids.ravel()
        self.mesh_shape = tuple(int(side) for side in mesh_shape)
        self.axis_names = None if axis_names is None else tuple(axis_names)
        numbers, names = self.device_ids.tolist(), self.axis_names
        self._ids = sharding.DeviceIds(numbers)
        self._op_shardings: dict[Dims, OpSharding] = {}
        planning.note_mesh(self)
        self._text = str({"device_ids": numbers, "mesh_shape": self.mesh_shape, "axis_names": names})

    def size(self) -> int:
        """Return the number of devices of the mesh."""
        return prod(self.mesh_shape)

    def shape(self) -> "OrderedDict[str | int, int]":
        """Return the size of each axis by its name, or by its index if the axes have no names."""
        return OrderedDict(zip(self.axis_names or range(len(self.mesh_shape)), self.mesh_shape, strict=True))

    def get_logical_mesh(self) -> np.ndarray:
        """Return the device ids in the shape of the mesh.

        >>> from torch_xla.distributed.spmd import Mesh
        >>> Mesh([0, 1], (2, 1)).get_logical_mesh().tolist()
        [[0], [1]]
        """
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """Return the index of the axis called `name`; `None` if there is none."""
        return self.axis_names.index(name) if self.axis_names and name in self.axis_names else None

    def get_op_sharding(self, partition_spec: PartitionSpec) -> OpSharding:
        """Return XLA's description of a tensor's division over this mesh by `partition_spec`.

        >>> from torch_xla.distributed.spmd import Mesh
        >>> print(Mesh([0, 1, 2, 3], (2, 2), ("data", "model")).get_op_sharding(("model", None)))
        {devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}
        """
        return self.op_sharding_along(axes_of("Mesh.get_op_sharding", self, partition_spec))

    def op_sharding_along(self, dims: Dims) -> OpSharding:
        """Return the same for the indices of the axes that divide each dimension; it is made once and kept."""
        found = self._op_shardings.get(dims)
        if found is None:
            found = self._op_shardings[dims] = tiling(self.get_logical_mesh(), dims)
        return found

    def get_op_sharding_v2(self, partition_spec: PartitionSpec) -> OpSharding:
        """Return `get_op_sharding(partition_spec)`: both functions write the list of devices."""
        return self.get_op_sharding(partition_spec)

    @classmethod
    def from_str(cls, mesh_str: str) -> "Mesh | None":
        """Return the mesh for the text `str(mesh)`; `None` for an empty text. Raises `ValueError` for any other text.

        >>> from torch_xla.distributed.spmd import Mesh
        >>> Mesh.from_str(str(Mesh([0, 1], (2, 1), ("data", "model"))))
        Mesh([0, 1], (2, 1), ('data', 'model'))
        """
        if not mesh_str:
            return None
        described = literal("Mesh.from_str", mesh_str)
        if not isinstance(described, dict) or set(described) != {"device_ids", "mesh_shape", "axis_names"}:
            raise ValueError(f"Mesh.from_str(): {mesh_str!r} is not what str() gives for a mesh")
        return cls(**described)

    def get_jax_mesh(self) -> jax.sharding.Mesh:
        """Return the same mesh as a mesh of JAX. Axes without names are named by their index.

        >>> from torch_xla.distributed.spmd import Mesh
        >>> Mesh([0], (1,), ("data",)).get_jax_mesh().axis_names
        ('data',)
        """
        there = devices_of_program("Mesh.get_jax_mesh", self)
        devices = np.array([there[index] for index in self.device_ids], dtype=object).reshape(self.mesh_shape)
        return jax.sharding.Mesh(devices, self.axis_names or [str(axis) for axis in range(len(self.mesh_shape))])

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Mesh({self.device_ids.tolist()}, {self.mesh_shape}, {self.axis_names})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @functools.cached_property
    def _key(self) -> tuple[object, ...]:
        return self._ids, self.mesh_shape, self.axis_names


def ids_of(mesh: Mesh) -> sharding.DeviceIds:
    """Return the numbers of a mesh's devices, in its order.

    >>> ids_of(Mesh([0, 1], (2,)))
    (0, 1)
    """
    return mesh._ids


class HybridMesh(Mesh):
    """A mesh over several slices of TPUs, or several machines. Each axis is slices times devices of a slice.

    `ici_mesh_shape` is the mesh within a slice, `dcn_mesh_shape` the mesh of slices, by default one slice. Order the
    axes by their traffic: data first, the axis with the most traffic last. Neighbours along an axis of
    `ici_mesh_shape` are in one slice. If devices have no slice index, the devices of a process are a slice. Raises
    `ValueError` if the shapes do not fit the slices.

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
        self.ici_mesh_shape = tuple(ici_mesh_shape)
        self.dcn_mesh_shape = tuple(dcn_mesh_shape or (1,) * len(self.ici_mesh_shape))
        if len(self.ici_mesh_shape) != len(self.dcn_mesh_shape):
            raise MeshError(
                f"HybridMesh(): ici_mesh_shape {self.ici_mesh_shape} and dcn_mesh_shape {self.dcn_mesh_shape} must "
                "have an entry for each axis"
            )
        whole = tuple(inner * outer for inner, outer in zip(self.ici_mesh_shape, self.dcn_mesh_shape, strict=True))
        slices = prod(self.dcn_mesh_shape)
        ids = np.arange(prod(whole)).reshape(slices, -1) if slices == 1 else np.array(self._slices(slices))
        # One axis of slices in front of each axis within them, then both as one.
        grid = ids.reshape(*self.dcn_mesh_shape, *self.ici_mesh_shape)
        rank = len(whole)
        order = [axis for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for axis in pair]
        super().__init__(grid.transpose(order).reshape(-1), whole, axis_names)

    def _slices(self, count: int) -> list[list[int]]:
        found = runtime.slices_of(runtime.all_devices())
        size = prod(self.ici_mesh_shape)
        if len(found) != count or any(len(each) != size for each in found):
            raise MeshError(
                f"HybridMesh(): dcn_mesh_shape {self.dcn_mesh_shape} asks for {count} slices of {size} devices; there "
                f"are {len(found)} of {', '.join(str(len(each)) for each in found)}"
            )
        return found


def set_global_mesh(mesh: Mesh | None) -> None:
    """Make `mesh` the default mesh; `None` removes the default.

    >>> import torch_xla.distributed.spmd as xs
    >>> xs.set_global_mesh(xs.Mesh([0], (1,), ("data",)))
    >>> xs.get_global_mesh()
    Mesh([0], (1,), ('data',))
    """
    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(f"set_global_mesh(): expected a Mesh, or None, not {type(mesh).__name__}")
    planning.set_default_mesh(mesh)


def get_global_mesh() -> Mesh | None:
    """Return the mesh of `set_global_mesh`; `None` if there is none."""
    return cast("Mesh | None", planning.default_mesh())


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """Return a mesh of all devices of the program along one axis. Starts the client.

    >>> import torch_xla.distributed.spmd as xs
    >>> xs.get_1d_mesh("data").axis_names
    ('data',)
    """
    count = len(runtime.all_devices())
    return Mesh(np.arange(count), (count,), None if axis_name is None else (axis_name,))


def devices_of_program(name: str, mesh: Mesh) -> tuple[jax.Device, ...]:
    """Return the devices of the program. Raise `ValueError` for the caller, `name`, if the mesh has another number."""
    there = runtime.all_devices()
    if mesh.size() != len(there):
        raise MeshError(
            f"{name}(): the mesh {mesh.mesh_shape} has {mesh.size()} devices, and this program has {len(there)}. "
            f"Make it of all of them (xr.global_runtime_device_count()); along an axis that divides nothing are "
            f"copies. On the CPU, CPU_NUM_DEVICES sets how many there are."
        )
    return there


@functools.lru_cache(maxsize=4096)
def axes_of(name: str, mesh: Mesh, partition_spec: PartitionSpec) -> Dims:
    """Return the axis indices of each entry of a partition spec. Raises `ValueError` for the caller, `name`."""
    return dims_of(name, mesh.mesh_shape, mesh.axis_names, partition_spec)
