"""Convert tensors on a mesh to the form of `torch.distributed.checkpoint`: the shards of this process, on the CPU."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor

from ..._engine import sharding
from ..._engine.compat.names.torch_checkpoint import dedup_save_plans, offset_of_local
from ..._engine.compat.names.torch_checkpoint import flatten_state_dict as flatten_state_dict
from ..._engine.compat.names.torch_checkpoint import narrow_tensor_by_index as narrow_tensor_by_index
from ..._engine.compat.names.torch_checkpoint import set_element as set_element
from ..._engine.compat.names.torch_checkpoint import unflatten_state_dict as unflatten_state_dict
from ..._engine.dtypes import to_numpy
from ..._engine.pytree import with_tensors_replaced as replaced
from ..._engine.tensor import from_numpy
from ...distributed import spmd as xs
from ...distributed.spmd.xla_sharded_tensor import is_divided
from ._copies import Room, copied


def dedup_tensors(all_plans: list[Any]) -> list[Any]:
    """Return the plans of all processes, changed so that each shard of a tensor is saved by one process.

    >>> from torch_xla.experimental.distributed_checkpoint._helpers import dedup_tensors
    >>> dedup_tensors([])
    []
    """
    return dedup_save_plans(all_plans)


def _is_sharded_tensor(x: object) -> bool:
    """Return whether the devices have different shards of a tensor."""
    if not isinstance(x, torch.Tensor) or x.device.type != "xla":
        return False
    return is_divided(xs.unwrap_sharded_tensor(x))


def _separated(state_dict: dict[str, Any]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the tensors of a state dict that are divided among the devices, and all other values, by flat names."""
    flat, _ = flatten_state_dict(state_dict)
    sharded = {name: value for name, value in flat.items() if _is_sharded_tensor(value)}
    return sharded, {name: value for name, value in flat.items() if name not in sharded}


@dataclass
class _CpuShards:
    """The shards of a tensor that this process has, on the CPU, by their offsets in the whole tensor."""

    shards: dict[tuple[int, ...], torch.Tensor]
    global_shape: torch.Size
    dtype: torch.dtype
    unread: int = field(default=0, compare=False)  # items of a load that are still to come

    def size(self) -> torch.Size:
        """Return the shape of the whole tensor: PyTorch's planner compares it with that of the checkpoint."""
        return self.global_shape

    def __create_write_items__(self, fqn: str, object: object) -> list[WriteItem]:
        """Return an item to write for each shard."""
        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size(offsets), place),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.global_shape),
            )
            for place, (offsets, chunk) in enumerate(zip(self.shards, self.__create_chunk_list__(), strict=True))
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Return offsets and sizes of the shards in the whole tensor."""
        return [ChunkStorageMetadata(torch.Size(offsets), part.shape) for offsets, part in self.shards.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """Return the shard at the offsets of the index."""
        return self.shards[tuple(index.offset or (0,) * len(self.global_shape))]


def _sharded_cpu_state_dict(state_dict: dict[str, Any]) -> dict[str, object]:
    """Return a state dict in which each tensor on `xla` is replaced by the shards that this process saves.

    Each shard is saved by one process. Waits for the devices. Later changes of these tensors do not change the result.
    """

    def parts(tensors: list[torch.Tensor]) -> list[Any]:
        return _parts_to_save(tensors, Room())

    return replaced(state_dict, _is_on_xla, parts)


def _frozen_state_dict(state_dict: dict[str, Any], room: Room) -> dict[str, Any]:
    """Return the same in a room, so that later changes of anything in the state dict do not change the result.

    An optimizer counts its steps in tensors on the CPU, and others keep lists and arrays.
    """
    found: list[torch.Tensor | _CpuShards] = []

    def copies(tensors: list[torch.Tensor]) -> list[Any]:
        on_xla = iter(_parts_to_save([each for each in tensors if _is_on_xla(each)], room))
        found.extend(next(on_xla) if _is_on_xla(each) else each.detach().clone() for each in tensors)
        return found

    result = replaced(state_dict, lambda tensor: True, copies)
    return copy.deepcopy(result, {id(each): each for each in found})


def _is_on_xla(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "xla"


class _Own(NamedTuple):
    """What this process has of a tensor, and where that begins in the whole: a `DTensor` has a part per process."""

    local: torch.Tensor
    offset: tuple[int, ...]

    def begin(self, begin: tuple[int, ...]) -> tuple[int, ...]:
        """Return the place in the whole of what begins here in the local tensor."""
        return tuple(there + here for there, here in zip(self.offset, begin, strict=True))

    def parts(self) -> dict[tuple[int, ...], sharding.LocalPart]:
        """Return the different parts that this process has, by their places in the whole. Waits for the devices."""
        if not _is_on_xla(self.local):
            return {self.offset: sharding.LocalPart(to_numpy(self.local), True)}
        return {self.begin(begin): part for begin, part in sharding.local_parts(self.local).items()}

    def places(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Return the sizes of the same parts, without reading values."""
        if not _is_on_xla(self.local):
            return {self.offset: tuple(self.local.shape)}
        places, is_empty = sharding.local_places(self.local), not self.local.numel()
        return {self.begin(begin): size for begin, size in places if 0 not in size or is_empty}

    def in_order(self, parts: Mapping[tuple[int, ...], torch.Tensor]) -> list[torch.Tensor]:
        """Return the part of each device of this process."""
        nothing = torch.empty(0, dtype=self.local.dtype)
        places = [(self.begin(begin), size) for begin, size in sharding.local_places(self.local)]
        return [parts[begin] if begin in parts else nothing.view(size) for begin, size in places]


def _load(given: Sequence[tuple[_Own, Mapping[tuple[int, ...], torch.Tensor]]]) -> None:
    """Write parts to tensors. The devices may go on to use the memory of the parts."""
    for own, parts in given:
        if not _is_on_xla(own.local):
            own.local.copy_(parts[own.offset])
    on_xla = [(own, parts) for own, parts in given if _is_on_xla(own.local)]
    sharding.give_local_shards([(own.local, own.in_order(parts)) for own, parts in on_xla])


def _own(tensor: torch.Tensor) -> _Own:
    plain = xs.unwrap_sharded_tensor(tensor)
    if not isinstance(plain, DTensor):
        return _Own(plain.detach(), (0,) * plain.dim())
    return _Own(plain.to_local().detach(), offset_of_local(plain))


def _parts_to_save(tensors: Sequence[torch.Tensor], room: Room) -> list[_CpuShards]:
    """Copy the parts of tensors on `xla` that this process saves. Waits for the devices."""
    parts = [{begin: part.array for begin, part in _own(each).parts().items() if part.is_first} for each in tensors]
    copies = iter(copied([array for each in parts for array in each.values()], room))
    return [
        _CpuShards({begin: from_numpy(next(copies)).to(tensor.dtype) for begin in each}, tensor.shape, tensor.dtype)
        for tensor, each in zip(tensors, parts, strict=True)
    ]


def _parts_to_load(tensor: torch.Tensor) -> _CpuShards:
    """Allocate memory for this process's shards of a tensor, without reading values."""
    found = {begin: torch.empty(size, dtype=tensor.dtype) for begin, size in _own(tensor).places().items()}
    return _CpuShards(found, tensor.shape, tensor.dtype)
