"""Shardings as XLA's `OpSharding` writes them: a grid of tiles, and the device of each."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from .. import metrics

_made = metrics.counter("CreateOpSharding")


class ShardingType(IntEnum):
    """The kind of a tensor's sharding over the devices of a mesh.

    >>> import torch_xla.distributed.spmd as xs
    >>> xs.ShardingType.TILED.name
    'TILED'
    """

    REPLICATED = 0  # each device has all of it
    MAXIMAL = 1  # one device has all of it
    TUPLE = 2
    TILED = 3  # each device has a part of its own
    MANUAL = 4
    PARTIAL = 5  # several devices have the same part
    UNKNOWN = 6


@dataclass(frozen=True)
class OpSharding:
    """Which device has which part of a tensor.

    `tile_assignment` is a nested list of device ids with a dimension for each of the tensor: as long as the number of
    parts. Where `sharding_type` is `PARTIAL` one dimension more follows, along which devices have the same part.

    >>> from torch_xla._XLAC import OpSharding
    >>> print(OpSharding([[0, 1], [2, 3]], [], [], 3))
    {devices=[2,2]0,1,2,3}
    """

    tile_assignment: object
    group_assignment: object
    replication_groups: object
    sharding_type: int

    @property
    def tiles(self) -> np.ndarray:
        """The device ids: shape (parts of each dimension ..., devices with the same part)."""
        tiles = np.array(self.tile_assignment)
        return tiles if self.sharding_type == ShardingType.PARTIAL else tiles[..., None]

    def __str__(self) -> str:
        if self.sharding_type in (ShardingType.REPLICATED, ShardingType.MANUAL):
            return f"{{{ShardingType(self.sharding_type).name.lower()}}}"
        tiles = np.array(self.tile_assignment)
        if self.sharding_type == ShardingType.MAXIMAL:
            return f"{{maximal device={tiles.item()}}}"
        last = " last_tile_dim_replicate" if self.sharding_type == ShardingType.PARTIAL else ""
        return f"{{devices=[{','.join(map(str, tiles.shape))}]{','.join(map(str, tiles.ravel()))}{last}}}"


@dataclass(frozen=True, init=False)
class XlaShardingSpec(OpSharding):
    """The sharding for a tensor on the host. With `minibatch` the tensor is this process's part of the batch.

    >>> from torch_xla._XLAC import XlaShardingSpec
    >>> print(XlaShardingSpec(None, [[0], [1]], [], [], 3))
    {devices=[2,1]0,1}
    """

    minibatch: bool = False

    def __init__(
        self,
        tensor: object,
        tile_assignment: object,
        group_assignment: object,
        replication_groups: object,
        sharding_type: int,
        minibatch: bool = False,
    ) -> None:
        super().__init__(tile_assignment, group_assignment, replication_groups, sharding_type)
        object.__setattr__(self, "minibatch", minibatch)


def tiling(mesh: np.ndarray, dims: tuple[tuple[int, ...], ...]) -> OpSharding:
    """Return the sharding that divides each dimension along these axes of an array of device ids."""
    _made.value += 1
    taken = [axis for axes in dims for axis in axes]
    rest = [axis for axis in range(mesh.ndim) if axis not in taken]
    parts = [int(np.prod([mesh.shape[axis] for axis in axes])) for axes in dims]
    return of_tiles(mesh.transpose(taken + rest).reshape(*parts, -1))


def of_tiles(tiles: np.ndarray) -> OpSharding:
    """Return the sharding of device ids by part: shape (parts of each dimension ..., devices of a part)."""
    replicas = tiles.shape[-1]
    if tiles.size == replicas:
        groups = [tiles.ravel().tolist()]
        return OpSharding([], [], groups if replicas > 1 else [], int(ShardingType.REPLICATED))
    if replicas > 1:
        groups = tiles.reshape(-1, replicas).tolist()
        return OpSharding(tiles.tolist(), [[i] for i in range(len(groups))], groups, int(ShardingType.PARTIAL))
    return OpSharding(tiles[..., 0].tolist(), [], [], int(ShardingType.TILED))
