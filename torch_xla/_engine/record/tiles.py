"""How tensors lie on devices, as XLA writes it."""

import torch

from ..client import platform
from ..graph.op_sharding import OpSharding, of_tiles
from ..graph.sharding import Sharding
from ..lowering.sharding import tiles_of
from . import placement
from .storage import value_of


def op_sharding_of(tensor: torch.Tensor) -> OpSharding:
    """How a tensor was marked, or how its computed value lies."""
    target = value_of(tensor).device.target
    tiles = tiles_of(placement.planned(tensor), tensor.dim(), target)
    place = {device: index for index, device in enumerate(platform.all_devices())}
    for index in range(tiles.size):
        tiles.flat[index] = place[target.devices[tiles.flat[index]]]
    return of_tiles(tiles)


def sharding_as(tensor: torch.Tensor, op_sharding: OpSharding) -> Sharding | None:
    """The engine's sharding that `op_sharding` describes, for a tensor of as many dimensions.

    Raises `ValueError` for one of other dimensions or other devices, or that does not divide it evenly.
    """
    if not op_sharding.tile_assignment:
        return None
    tiles = op_sharding.tiles
    count = len(platform.all_devices())
    if tiles.ndim - 1 != tensor.dim() or sorted(tiles.ravel().tolist()) != list(range(count)):
        raise ValueError(
            f"{op_sharding} does not describe a tensor of {tensor.dim()} dimensions on the {count} devices of this "
            "program"
        )
    if any(size % parts for size, parts in zip(tensor.shape, tiles.shape, strict=False)):
        raise ValueError(f"{op_sharding} does not divide a tensor of shape {list(tensor.shape)} evenly")
    ids = tuple(int(index) for index in tiles.ravel())
    dims = tuple((axis,) for axis in range(tiles.ndim - 1))
    return placement.sharding_over(value_of(tensor).device, ids, tiles.shape, dims)
