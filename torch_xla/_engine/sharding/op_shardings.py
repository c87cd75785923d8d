"""The `OpSharding` of tensors, as XLA writes it."""

import torch

from ..ir.op_sharding import OpSharding, ShardingType, XlaShardingSpec, of_tiles
from ..ir.sharding import Free, Sharding
from ..lowering.machinery.jax_sharding import tiles_of
from ..runtime import platform
from ..runtime.device_assignment import Target
from ..tensor.device import Device
from ..tensor.storage import value_of, wrap
from ..tensor.upload import upload
from .placement import DeviceIds, sharding_over
from .placement import foreseen as foreseen_sharding
from .placement import is_said as is_sharding_known


def op_sharding_of(tensor: torch.Tensor) -> OpSharding:
    """Return the sharding of a tensor's mark or value; that of copies if it is not determined yet."""
    foreseen = foreseen_sharding(tensor)
    known = None if isinstance(foreseen, Free) else foreseen
    return described(known, tensor.dim(), value_of(tensor).device.target)


def described(sharding: Sharding | None, rank: int, target: Target) -> OpSharding:
    """Return the sharding of a value with `rank` dimensions in the form of XLA."""
    if sharding is not None and sharding.is_manual:
        return OpSharding([], [], [], int(ShardingType.MANUAL))
    tiles = tiles_of(sharding, rank, target)
    place = {device: index for index, device in enumerate(platform.all_devices())}
    for index in range(tiles.size):
        tiles.flat[index] = place[target.devices[tiles.flat[index]]]
    return of_tiles(tiles)


def text_of(tensor: torch.Tensor) -> str:
    """Return it in XLA's notation, `"{devices=[2,1]0,1}"`; empty under SPMD if it is not determined yet."""
    is_open = value_of(tensor).device.spread is not None and not is_sharding_known(tensor)
    return "" if is_open else str(op_sharding_of(tensor))


def sharding_as(tensor: torch.Tensor, op_sharding: OpSharding) -> Sharding | None:
    """Return the engine's sharding that `op_sharding` describes, for a tensor of as many dimensions.

    Raises `RuntimeError` for one of other dimensions or other devices.
    """
    return _sharding_on(value_of(tensor).device, tensor.dim(), op_sharding)


def uploaded(tensor: torch.Tensor, device: Device, spec: XlaShardingSpec | None) -> torch.Tensor:
    """Return a tensor on `device` with the contents of a CPU tensor, divided as `spec` requires."""
    if spec is None or device.spread is None:
        return tensor.to(device.torch_device)
    return wrap(upload(tensor, device, _sharding_on(device, tensor.dim(), spec), spec.minibatch))


def _sharding_on(device: Device, rank: int, op_sharding: OpSharding) -> Sharding | None:
    if not op_sharding.tile_assignment:
        return None
    tiles = op_sharding.tiles
    count = len(platform.all_devices())
    if tiles.ndim - 1 != rank or sorted(tiles.ravel().tolist()) != list(range(count)):
        raise RuntimeError(
            f"{op_sharding} does not describe a tensor of {rank} dimensions on the {count} devices of this program"
        )
    ids = DeviceIds(tiles.ravel().tolist())
    dims = tuple((axis,) for axis in range(tiles.ndim - 1))
    return sharding_over(device, ids, tiles.shape, dims)
