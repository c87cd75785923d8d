"""Tensors on a mesh as `torch.distributed.checkpoint` takes them: the parts of this process, on the CPU."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from ..._engine.compat.names.torch_checkpoint import dedup_save_plans
from ..._engine.compat.names.torch_checkpoint import flatten_state_dict as flatten_state_dict
from ..._engine.compat.names.torch_checkpoint import narrow_tensor_by_index as narrow_tensor_by_index
from ..._engine.compat.names.torch_checkpoint import set_element as set_element
from ..._engine.pytree.nested import replaced
from ..._engine.sharding import addressable_shards
from ...distributed import spmd as xs
from ...distributed.spmd.xla_sharded_tensor import is_divided


def dedup_tensors(all_plans: list[Any]) -> list[Any]:
    """The plans of all processes, each part of a tensor saved by one of them.

    >>> from torch_xla.experimental.distributed_checkpoint._helpers import dedup_tensors
    >>> dedup_tensors([])
    []
    """
    return dedup_save_plans(all_plans)


def _is_sharded_tensor(x: Any) -> bool:
    """Whether the devices have different parts of a tensor."""
    if not isinstance(x, torch.Tensor) or x.device.type != "xla":
        return False
    return is_divided(xs.unwrap_sharded_tensor(x))


@dataclass
class _CpuShards:
    """The parts of a tensor that this process has, on the CPU: by where each begins in the whole."""

    shards: dict[tuple[int, ...], torch.Tensor]
    global_shape: torch.Size
    dtype: torch.dtype
    unread: int = field(default=0, compare=False)  # items of a load that are still to come

    def __create_write_items__(self, fqn: str, object: Any) -> list[WriteItem]:
        """What is to be written: an item for each part."""
        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size(offsets)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.global_shape),
            )
            for offsets, chunk in zip(self.shards, self.__create_chunk_list__(), strict=True)
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Where the parts lie in the whole."""
        return [ChunkStorageMetadata(torch.Size(offsets), part.shape) for offsets, part in self.shards.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """The part that begins where the index says."""
        return self.shards[tuple(index.offset or (0,) * len(self.global_shape))]


def _sharded_cpu_state_dict(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A state dict with the parts that this process saves in the place of each tensor on `xla`.

    Each part is saved by one process. Waits for the devices; later changes of the tensors are not seen.
    """

    def parts(tensors: list[torch.Tensor]) -> list[Any]:
        return [_parts_to_save(tensor) for tensor in map(xs.unwrap_sharded_tensor, tensors)]

    return replaced(state_dict, lambda tensor: tensor.device.type == "xla", parts)


def _parts_to_save(tensor: torch.Tensor) -> _CpuShards:
    own = addressable_shards.local_shards(tensor.detach(), replicas=False)
    found = {shard.begin: shard.data for shard in own if shard.data.numel() or not tensor.numel()}
    return _CpuShards(found, tensor.shape, tensor.dtype)


def _parts_to_load(tensor: torch.Tensor) -> _CpuShards:
    """Memory for what this process has of a tensor, of which nothing is read."""
    places = addressable_shards.local_places(tensor)
    wanted = [(begin, size) for begin, size in places if 0 not in size or not tensor.numel()]
    found = {begin: torch.empty(size, dtype=tensor.dtype) for begin, size in wanted}
    return _CpuShards(found, tensor.shape, tensor.dtype)


def _load(tensor: torch.Tensor, parts: _CpuShards) -> None:
    places = addressable_shards.local_places(tensor)
    nothing = torch.empty(0, dtype=tensor.dtype)
    own = [parts.shards[begin] if begin in parts.shards else nothing.view(size) for begin, size in places]
    addressable_shards.load_local_shards(tensor, own)
