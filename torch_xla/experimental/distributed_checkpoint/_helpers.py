"""Convert tensors on a mesh to the form of `torch.distributed.checkpoint`: the shards of this process, on the CPU."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from ..._engine import sharding
from ..._engine.compat.names.torch_checkpoint import dedup_save_plans
from ..._engine.compat.names.torch_checkpoint import flatten_state_dict as flatten_state_dict
from ..._engine.compat.names.torch_checkpoint import narrow_tensor_by_index as narrow_tensor_by_index
from ..._engine.compat.names.torch_checkpoint import set_element as set_element
from ..._engine.pytree import with_tensors_replaced as replaced
from ...distributed import spmd as xs
from ...distributed.spmd.xla_sharded_tensor import is_divided


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
        return [_parts_to_save(tensor) for tensor in tensors]

    return replaced(state_dict, _is_on_xla, parts)


def _frozen_state_dict(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return the same, so that later changes of anything in the state dict do not change the result.

    An optimizer counts its steps in tensors on the CPU, and others keep lists and arrays.
    """
    copied: list[Any] = []

    def copies(tensors: list[torch.Tensor]) -> list[Any]:
        copied.extend(_parts_to_save(each) if _is_on_xla(each) else each.detach().clone() for each in tensors)
        return copied

    result = replaced(state_dict, lambda tensor: True, copies)
    return copy.deepcopy(result, {id(each): each for each in copied})


def _is_on_xla(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "xla"


def _parts_to_save(tensor: torch.Tensor) -> _CpuShards:
    tensor = xs.unwrap_sharded_tensor(tensor)
    own = sharding.local_shards(tensor.detach(), replicas=False)
    found = {shard.begin: shard.data for shard in own if shard.data.numel() or not tensor.numel()}
    return _CpuShards(found, tensor.shape, tensor.dtype)


def _parts_to_load(tensor: torch.Tensor) -> _CpuShards:
    """Allocate memory for this process's shards of a tensor, without reading values."""
    places = sharding.local_places(tensor)
    wanted = [(begin, size) for begin, size in places if 0 not in size or not tensor.numel()]
    found = {begin: torch.empty(size, dtype=tensor.dtype) for begin, size in wanted}
    return _CpuShards(found, tensor.shape, tensor.dtype)


def _load(tensor: torch.Tensor, parts: _CpuShards) -> None:
    places = sharding.local_places(tensor)
    nothing = torch.empty(0, dtype=tensor.dtype)
    own = [parts.shards[begin] if begin in parts.shards else nothing.view(size) for begin, size in places]
    sharding.load_local_shards(tensor, own, shares=True)
