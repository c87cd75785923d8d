"""The functions of `torch_xla._XLAC` about shardings."""

from collections.abc import Sequence
from typing import Any

import torch

from ._engine.graph.op_sharding import OpSharding
from ._engine.host import shards
from ._engine.record import marks, ordinals, pending, placement, tiles

Tensors = Sequence[torch.Tensor]


def _xla_mark_sharding(input: torch.Tensor, sharding: OpSharding) -> None:
    """Divides a tensor as `sharding` says, and keeps it so when it is written; under SPMD.

    >>> import torch, torch_xla
    >>> x = torch.ones(2, device="xla")
    >>> torch_xla._XLAC._xla_mark_sharding(x, torch_xla._XLAC.OpSharding([], [], [], 0))
    >>> torch_xla._XLAC._get_xla_sharding_spec(x)
    ''
    """
    if _is_spread(input):
        placement.mark(input, tiles.sharding_as(input, sharding))


def _xla_annotate_custom_sharding(input: torch.Tensor, sharding: OpSharding) -> None:
    """Divides what a tensor shows now as `sharding` says."""
    if _is_spread(input):
        placement.place(input, tiles.sharding_as(input, sharding))


def _xla_clear_sharding(input: torch.Tensor) -> None:
    """Gives each device all of a tensor."""
    if _is_spread(input):
        marks.forget(input)
        placement.place(input, None)


def _is_spread(tensor: torch.Tensor) -> bool:
    return ordinals.device_named(pending.on_xla(tensor).device).spread is not None


def _get_xla_op_sharding(input: torch.Tensor) -> OpSharding | None:
    """How a tensor is divided; `None` if each device has all of it."""
    found = tiles.op_sharding_of(pending.on_xla(input))
    return found if found.tile_assignment else None


def _get_xla_sharding_spec(input: torch.Tensor) -> str:
    """The same as text, `"{devices=[2,1]0,1}"`; empty if each device has all of it."""
    found = _get_xla_op_sharding(input)
    return "" if found is None else str(found)


def _get_xla_sharding_specs(tensors: Tensors) -> list[str]:
    """`_get_xla_sharding_spec` of each."""
    return [_get_xla_sharding_spec(tensor) for tensor in tensors]


def _get_xla_sharding_type(input: torch.Tensor) -> int | None:
    """The number of the kind of sharding, as in `spmd.ShardingType`; `None` if each device has all of the tensor."""
    found = _get_xla_op_sharding(input)
    return None if found is None else found.sharding_type


def _get_local_shards(tensors: Tensors) -> list[list[tuple[torch.Tensor, str]]]:
    """For each tensor what the devices of this process have of it, on the CPU, with the devices' names."""
    return [[(each.data, each.device) for each in shards.local_shards(tensor)] for tensor in tensors]


def _get_local_shard_replica_and_indices(tensors: Tensors) -> list[list[tuple[int, Any]]]:
    """For each tensor and device of this process which copy of its part it has, and the slices of the whole."""
    found = []
    for tensor in tensors:
        whole = _get_xla_op_sharding(tensor) is None
        found.append([(each.replica, ... if whole else list(each.indices)) for each in shards.local_shards(tensor)])
    return found


def _load_local_shards(tensor: torch.Tensor, parts: Tensors, devices: Sequence[str]) -> None:
    """Writes to a tensor what each of these devices of this process is to have of it."""
    order = sorted(range(len(parts)), key=lambda index: int(devices[index].partition(":")[2]))
    shards.load_local_shards(tensor, [parts[index] for index in order])
