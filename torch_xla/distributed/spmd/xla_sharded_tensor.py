"""Tensors on the devices of a mesh, and their shards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ..._engine import sharding
from ..._engine.compat.names import torch as private
from ..._engine.compat.names import torch_checkpoint as checkpointing
from ..._engine.compat.names import torch_distributed as distributed
from ..._engine.ir import ShardingType, dims_of
from ..._engine.processes import process_count
from ..._engine.sharding import op_sharding_of
from ..._engine.sharding import sharding_text as text_of


@dataclass
class XLAShard:
    """One device's shard of a tensor, as a copy on the CPU.

    `indices` is a list of the slices of the whole tensor, or `...` if the device has all of it. `replica_id` counts the
    devices with the same shard. All shards have one size: if the mesh does not divide a dimension evenly, `data`
    contains padding beyond the end of the tensor, and `unpadded_data` does not.
    """

    data: torch.Tensor
    indices: EllipsisType | list[slice]
    shard_device: str
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        """Return the shard without padding, with the shape of `indices`."""
        return self.data[self._own]

    @unpadded_data.setter
    def unpadded_data(self, t: torch.Tensor) -> None:
        """Replace the shard, and keep its padding."""
        self.data[self._own] = t

    @property
    def _own(self) -> EllipsisType | tuple[slice, ...]:
        return (
            ...
            if isinstance(self.indices, EllipsisType)
            else tuple(slice(each.stop - each.start) for each in self.indices)
        )


@contextmanager
def no_dispatch() -> Iterator[None]:
    """Treat tensors of subclasses as plain tensors within a `with` block.

    >>> from torch_xla.distributed.spmd.xla_sharded_tensor import no_dispatch
    >>> with no_dispatch():
    ...     pass
    """
    with private.without_torch_dispatch():
        yield


# Functions of `device_meshes`: divide a tensor again, make a `DeviceMesh` of a shape and a `Mesh`, find the placements
# that XLA chose, return a process's part.
redistribution: list[Any] = []
device_mesh_of: list[Any] = []
found_placements: list[Any] = []
local_part: list[Any] = []


class _Absent:
    """An attribute that the base class has, but a class and its instances do not have."""

    def __get__(self, instance: object, owner: object = None) -> Any:
        raise AttributeError("a class and its instances do not have this attribute of their base class")


class XLAShardedTensor(DTensor):
    """A tensor on `xla` with its sharding over the devices of a mesh: the result of `mark_sharding`.

    It shares the memory of the marked tensor, its `global_tensor`, and gradients flow through it. Results of operations
    on it are of this class, too, and XLA chooses their sharding. `mesh_shape` and `partition_spec` are those of the
    mark, if there is one.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> t = xs.mark_sharding(torch.arange(4.0, device="xla"), xs.get_1d_mesh("data"), ("data",))
    >>> t.local_shards[0].data, (t * 2).global_tensor
    (tensor([0., 1., 2., 3.]), tensor([0., 2., 4., 6.], device='xla:0'))
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        with private.without_torch_function():
            result = func(*args, **(kwargs or {}))
        if torch.compiler.is_compiling() or func in _PLAIN or isinstance(result, torch.Size):
            return result
        return cls._computed(result, args) if isinstance(result, torch.Tensor | tuple | list) else result

    @classmethod
    def _computed(cls, result: object, args: object) -> Any:
        """Return what was computed from `args`, with a sharded tensor for each plain tensor on `xla`."""
        given = (each._mesh for each in private.pytree.tree_leaves(args) if isinstance(each, XLAShardedTensor))
        mesh = next(given, None)
        return sharded(result, lambda plain: XLAShardedTensor(plain).over(mesh))

    __torch_dispatch__ = private.plain_torch_dispatch

    # It shows memory of its own, so `torch.compile` takes it as it is: it wraps no tensor as other `DTensor`s do.
    __tensor_flatten__ = _Absent()
    __tensor_unflatten__ = _Absent()

    global_tensor: torch.Tensor
    mesh_shape: tuple[int, ...] | None
    partition_spec: Any
    _mesh: Any  # the `Mesh` that it was marked over, as far as it was told
    _cached_spec: object
    _on: tuple[Any, tuple[Placement, ...] | None]

    @staticmethod
    def __new__(
        cls: type["XLAShardedTensor"],
        elem: torch.Tensor,
        mesh_shape: tuple[int, ...] | None = None,
        partition_spec: object = None,
        *args: object,
        **kwargs: object,
    ) -> "XLAShardedTensor":
        whole = elem.global_tensor if isinstance(elem, XLAShardedTensor) else elem
        made: XLAShardedTensor = whole.as_subclass(cls)
        if made.requires_grad and whole.is_leaf:
            made.retain_grad()
        made.global_tensor = whole
        made.mesh_shape = mesh_shape
        made.partition_spec = partition_spec
        made._mesh = made._cached_spec = None
        made._on = None, ()
        return made

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    @property
    def local_shards(self) -> list[XLAShard]:
        """Return the shard of each device of this process, copied to the CPU. Waits for the devices."""
        found = sharding.local_shards(self.global_tensor)
        whole = self.sharding_type is ShardingType.REPLICATED
        return [
            XLAShard(part.padded, ... if whole else list(part.indices), part.device, part.replica) for part in found
        ]

    def load_local_shards_(self, shards_: list[XLAShard]) -> None:
        """Write the shards of this process's devices, in the order of `local_shards`. Every process writes its own.

        The `unpadded_data` of each shard is written. Raises `RuntimeError` for another number, dtype or shape.
        """
        sharding.load_local_shards(self.global_tensor, [_unpadded(shard) for shard in shards_])

    @property
    def sharding_spec(self) -> str:
        """Return the sharding in XLA's notation: `"{devices=[2,1]0,1}"`, or `"{replicated}"`.

        Empty if XLA is still to choose it.
        """
        return text_of(self.global_tensor)

    @property
    def sharding_type(self) -> ShardingType:
        """Return the kind of the sharding."""
        return ShardingType(op_sharding_of(self.global_tensor).sharding_type)

    def on(self, device_mesh: object, placements: Sequence[Placement] | None) -> "XLAShardedTensor":
        """Set the `DeviceMesh` and placements of this tensor (by default its current placements), and return it."""
        self._on = device_mesh, None if placements is None else tuple(placements)
        self._cached_spec = None
        return self

    @property
    def shown(self) -> torch.Tensor:
        """Return a plain tensor of the same value, through which gradients flow to this one."""
        with private.without_torch_function():
            return self.view_as(self) if self.requires_grad else self.global_tensor

    @property
    def device_mesh(self) -> Any:
        """Return the `DeviceMesh` of this tensor, or one like the `Mesh` that it was marked over; `None` if neither."""
        if self._on[0] is None and self.mesh_shape is not None:
            return device_mesh_of[0](self.mesh_shape, self._mesh)
        return self._on[0]

    @property
    def _spec(self) -> Any:  # type: ignore[override]
        """Return PyTorch's description of a distributed tensor: its mesh, placements, size and dtype. Cached.

        Without a mark, the mesh is that of the operands, or all devices in a row.
        """
        if self._cached_spec is None:
            told, mesh = self, self.device_mesh
            if mesh is None:
                told = type(self)(self.global_tensor).on(device_mesh_of[0](None, self._mesh), None)
            self._cached_spec = distributed.spec_of_tensor(told.device_mesh, told.placements, self.global_tensor)
        return self._cached_spec

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Return the placement along each axis of `device_mesh`, or of the mesh of the mark.

        If XLA chooses the placements, compute the tensor to learn them. Raises `RuntimeError` if XLA's choice is not
        along the axes of the mesh.
        """
        if self._on[0] is not None:
            return found_placements[0](self) if self._on[1] is None else self._on[1]  # type: ignore[no-any-return]
        if self.mesh_shape is None or self.partition_spec is None:
            return ()
        entries = [entry if isinstance(entry, tuple | list) else (entry,) for entry in self.partition_spec]
        names = None if self._mesh is None else self._mesh.axis_names
        if names is None and any(isinstance(axis, str) for entry in entries for axis in entry):
            raise RuntimeError(
                f"placements: this tensor does not know which axes of its mesh {self.mesh_shape} have the names "
                f"in {self.partition_spec}. Use the result of mark_sharding(), or give the axes by number"
            )
        found: list[Placement] = [Replicate()] * len(self.mesh_shape)
        for dim, axes in enumerate(dims_of("placements", self.mesh_shape, names, self.partition_spec)):
            for axis in axes:
                found[axis] = Shard(dim)
        return tuple(found)

    def over(self, mesh: object) -> "XLAShardedTensor":
        """Set the `Mesh` of the partition spec (`None`: one without names), and return this tensor."""
        self._mesh, self._cached_spec = mesh, None
        return self

    def redistribute(
        self,
        device_mesh: object = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
        **_: object,
    ) -> "XLAShardedTensor":
        """Return a new tensor with the same value and other placements, through which gradients flow.

        `device_mesh`, a `DeviceMesh` or a `Mesh`, is by default the tensor's own. XLA schedules the communication, so
        `async_op` has no effect. Raises `ValueError` unless there is a placement for each axis of the mesh,
        `IndexError` for a dimension that the tensor does not have, and `NotImplementedError` for `Partial`.
        """
        mesh = device_mesh if device_mesh is not None else self.device_mesh
        if mesh is None or placements is None:
            raise RuntimeError("redistribute(): give device_mesh, a DeviceMesh('xla', …) or a Mesh, and placements")
        return redistribution[0](self, mesh, placements)  # type: ignore[no-any-return]

    def to_local(self, **_: object) -> torch.Tensor:
        """Return the part that this process holds: with one process, all of it as a plain tensor. Gradients flow.

        With several processes the result is on the CPU, since a tensor on `xla` belongs to all of them. Raises
        `ValueError` if the shards of a process do not form a block of the tensor; use `local_shards` there.
        """
        if process_count() > 1:
            return local_part[0](self)  # type: ignore[no-any-return]
        return self.shown

    def full_tensor(self, **_: object) -> torch.Tensor:
        """Return the value with a copy on every device, as a plain tensor. Gradients flow through."""
        if self._on[0] is None:
            return self.shown
        whole = self.redistribute(self.device_mesh, [Replicate()] * self.device_mesh.ndim)
        return whole.shown

    def invalidate_spec_cache(self) -> None:
        """Clear the cached `_spec`."""
        self._cached_spec = None

    def detach(self) -> "XLAShardedTensor":
        """Return the same tensor without gradients."""
        made = type(self)(self.global_tensor.detach(), self.mesh_shape, self.partition_spec)
        return made.over(self._mesh).on(*self._on)

    def __create_write_items__(self, fqn: str, object: object) -> list[object]:
        """Return the items that `torch.distributed.checkpoint` writes by its default planner: the whole tensor."""
        return checkpointing.write_items(fqn, self.global_tensor)

    def __create_chunk_list__(self) -> list[object]:
        """Return the position of these items in the whole tensor."""
        return checkpointing.chunks(self.global_tensor)

    def __get_tensor_shard__(self, index: object) -> torch.Tensor:
        """Return the tensor itself."""
        return self.global_tensor

    def __repr__(self) -> str:  # type: ignore[override]
        return f"XLAShardedTensor({self.global_tensor!r})"

    def __deepcopy__(self, memo: object) -> torch.Tensor:
        return self.global_tensor.__deepcopy__(memo)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: object) -> str | tuple[object, ...]:
        return self.global_tensor.__reduce_ex__(protocol)


# They give a tensor that is asked for as a plain one.
_PLAIN = frozenset((torch.Tensor.as_subclass, torch.Tensor.detach))


def sharded(outputs: object, make: Callable[[torch.Tensor], XLAShardedTensor]) -> object:
    """Replace each plain tensor on `xla` in a structure by what `make` returns for it."""

    def made(value: Any) -> object:
        is_plain = isinstance(value, torch.Tensor) and not isinstance(value, XLAShardedTensor)
        return make(value) if is_plain and value.device.type == "xla" else value

    return private.pytree.tree_map(made, outputs)


def _unpadded(shard: XLAShard) -> torch.Tensor:
    fits = shard.indices is ... or shard.data.dim() == len(shard.indices)
    return shard.unpadded_data if fits else shard.data  # which is refused by its shape


def is_divided(t: torch.Tensor) -> bool:
    """Return whether the devices of the program have different shards of `t`, as far as this is known yet."""
    return sharding.planned_sharding(t) is not None
