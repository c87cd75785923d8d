"""Divide parameters among the processes of a group, and gather them again.

A part is a row of a matrix: row i of `count` belongs to process i. So several tensors of one dtype, whatever their
shapes, can travel as one matrix.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from ..collectives import Groups, all_gather
from ..collectives import reduce_scatter as reduce_scatter_values


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """The division of a tensor of `size` among `count` processes.

    Without `on_dim_0` the tensor is flattened and padded with zeros to a multiple of `count * multiple` elements, and a
    shard has one dimension. With `on_dim_0` a shard has some of the rows, padded to an equal number, and the tensor's
    rank.
    """

    size: torch.Size
    count: int
    on_dim_0: bool = False
    multiple: int = 1

    @property
    def shard_size(self) -> tuple[int, ...]:
        """The shape of a part."""
        if self.on_dim_0 and self.size:
            return (-(-self.size[0] // self.count), *self.size[1:])
        step = self.count * self.multiple
        return (-(-max(1, self.size.numel()) // step) * step // self.count,)

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the parts of `tensor`, of shape `size`, as a matrix of `count` rows."""
        flat = tensor.reshape(-1)
        missing = self.count * math.prod(self.shard_size) - flat.numel()
        return (functional.pad(flat, (0, missing)) if missing else flat).view(self.count, -1)

    def shard(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        """Return part `place` of `tensor`, in memory of its own."""
        flat = tensor.detach().reshape(-1)
        length = math.prod(self.shard_size)
        part = flat[place * length : (place + 1) * length]
        missing = length - part.numel()
        return (functional.pad(part, (0, missing)) if missing else part.clone()).view(self.shard_size)

    def whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the tensor whose shards are the rows of a matrix, as a view if the matrix is contiguous."""
        return rows.reshape(-1)[: self.size.numel()].view(self.size)


def gather(
    shards: Sequence[torch.Tensor], count: int, groups: Groups, bucket_mebibytes: float = 0
) -> list[torch.Tensor]:
    """Return for each shard a matrix whose rows are the shards of all processes of a group.

    With `bucket_mebibytes` shards of one dtype share messages of up to this size.
    """
    rows = [shard.reshape(1, -1) for shard in shards]
    if count == 1 or not rows:
        return rows
    if not bucket_mebibytes:
        return all_gather(rows, 0, groups)
    return _in_buckets(rows, bucket_mebibytes, lambda joined: all_gather([joined], 0, groups)[0])


def reduce_scatter(
    matrices: Sequence[torch.Tensor], count: int, groups: Groups, bucket_mebibytes: float = 0
) -> list[torch.Tensor]:
    """Sum each matrix over a group, and return the row of this process, with shape (1, width).

    With `bucket_mebibytes` matrices of one dtype share messages of up to this size.
    """
    if count == 1 or not matrices:
        return list(matrices)
    if not bucket_mebibytes:
        return reduce_scatter_values(matrices, "sum", 0, groups)
    return _in_buckets(matrices, bucket_mebibytes, lambda joined: reduce_scatter_values([joined], "sum", 0, groups)[0])


def _in_buckets(
    rows: Sequence[torch.Tensor], mebibytes: float, exchange: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    results = list(rows)
    kinds: dict[torch.dtype, list[int]] = {}
    for index, row in enumerate(rows):
        kinds.setdefault(row.dtype, []).append(index)
    for indices in kinds.values():
        for bucket in _buckets(rows, indices, mebibytes * 2**20):
            joined = exchange(torch.cat([rows[index] for index in bucket], 1))
            for index, part in zip(bucket, joined.split([rows[i].shape[1] for i in bucket], 1), strict=True):
                results[index] = part
    return results


def _buckets(tensors: Sequence[torch.Tensor], indices: Sequence[int], most: float) -> list[list[int]]:
    buckets: list[list[int]] = []
    room = 0.0
    for index in indices:
        size = tensors[index].numel() * tensors[index].element_size()
        if not buckets or size > room:
            buckets.append([])
            room = most
        buckets[-1].append(index)
        room -= size
    return buckets
