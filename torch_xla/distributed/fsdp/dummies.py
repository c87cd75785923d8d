"""Collectives of a unit without communication, for the arguments `_debug_dummy_…` of `XlaFullyShardedDataParallel`."""

from collections.abc import Sequence

import torch

from ..._engine.distributed import Groups
from .utils import dummy_all_reduce as dummy_all_reduce


def gather(
    shards: Sequence[torch.Tensor], count: int, groups: Groups, bucket_mebibytes: float = 0
) -> list[torch.Tensor]:
    """Return for each shard a matrix whose rows all are this shard."""
    return [shard.reshape(1, -1).repeat(count, 1) for shard in shards]


def reduce_scatter(
    matrices: Sequence[torch.Tensor], count: int, groups: Groups, bucket_mebibytes: float = 0
) -> list[torch.Tensor]:
    """Return the first row of each matrix."""
    return [matrix[:1] for matrix in matrices]
