"""The functions of `torch_xla._XLAC` about shardings."""

from collections.abc import Sequence
from types import EllipsisType

import torch

from .._engine import planning, processes, step
from .._engine import sharding as _sharding
from .._engine import tensor as _tensor
from .._engine.ir import OpSharding, ShardingType

Tensors = Sequence[torch.Tensor]


def _xla_set_auto_sharding() -> None:
    """Turn on the search for layouts, as `torch_xla.runtime.use_spmd(auto=True)` does under SPMD."""
    planning.turn_on_automatic_sharding()


def _xla_get_auto_sharding() -> bool:
    """Return whether layouts are searched for."""
    return processes.is_spmd_automatic()


def _xla_mark_sharding(input: torch.Tensor, sharding: OpSharding) -> None:
    """Divide a tensor as `sharding` describes, and keep it divided when it is written; under SPMD.

    >>> import torch, torch_xla
    >>> x = torch.ones(2, device="xla")
    >>> torch_xla._XLAC._xla_mark_sharding(x, torch_xla._XLAC.OpSharding([], [], [], 0))
    >>> torch_xla._XLAC._get_xla_sharding_spec(x)
    ''
    """
    if _is_spread(input):
        _sharding.mark_sharding(input, _sharding.sharding_as(input, sharding))


def _xla_annotate_custom_sharding(input: torch.Tensor, sharding: OpSharding) -> None:
    """Divide the current value of a tensor as `sharding` describes."""
    if _is_spread(input):
        _sharding.annotate_sharding(input, _sharding.sharding_as(input, sharding))


def _xla_clear_sharding(input: torch.Tensor) -> None:
    """Give each device all of a tensor."""
    if _is_spread(input):
        _sharding.clear_sharding(input)


def _is_spread(tensor: torch.Tensor) -> bool:
    return _tensor.device_named(step.on_xla(tensor).device).spread is not None


def _get_xla_op_sharding(input: torch.Tensor) -> OpSharding | None:
    """Return the sharding of a tensor; `None` if it is not determined."""
    is_said = _is_spread(input) and _sharding.is_sharding_marked(input)
    return _sharding.op_sharding_of(input) if is_said else None


def _get_xla_sharding_spec(input: torch.Tensor) -> str:
    """Return the sharding of a tensor as text: `"{devices=[2,1]0,1}"`, `"{replicated}"`; empty if it is not determined.

    A mark determines it, and so does the program that has computed the tensor. Before the program runs, the sharding is
    determined for results of `mark_sharding_with_gradients`, for those that leave a manual region, and for those
    computed element by element from divided tensors. Each device has a copy of an unmarked tensor from the host, and
    the text is empty for it.
    """
    found = _get_xla_op_sharding(input)
    return "" if found is None else str(found)


def _get_xla_sharding_specs(tensors: Tensors) -> list[str]:
    """Return `_get_xla_sharding_spec` of each tensor."""
    return [_get_xla_sharding_spec(tensor) for tensor in tensors]


def _get_xla_sharding_type(input: torch.Tensor) -> int | None:
    """Return the kind of a sharding, as in `spmd.ShardingType`; `None` if the sharding is not determined."""
    found = _get_xla_op_sharding(input)
    return None if found is None else found.sharding_type


def _get_local_shards(tensors: Tensors) -> list[list[tuple[torch.Tensor, str]]]:
    """Return for each tensor the shards on the devices of this process, copied to the CPU, with the devices' names."""
    return [[(each.padded, each.device) for each in _sharding.local_shards(tensor)] for tensor in tensors]


def _get_local_shard_replica_and_indices(tensors: Tensors) -> list[list[tuple[int, EllipsisType | list[slice]]]]:
    """Return for each tensor and device of this process the replica id of its shard, and the slices of the whole."""
    found = []
    for tensor in tensors:
        shards = _sharding.local_shards(tensor)
        whole = _sharding.op_sharding_of(tensor).sharding_type == ShardingType.REPLICATED
        found.append([(each.replica, ... if whole else list(each.indices)) for each in shards])
    return found


def _load_local_shards(tensor: torch.Tensor, parts: Tensors, devices: Sequence[str]) -> None:
    """Write the shard of each of these devices of this process to a tensor."""
    order = sorted(range(len(parts)), key=lambda index: int(devices[index].partition(":")[2]))
    _sharding.load_local_shards(tensor, [parts[index] for index in order])


def _mark_manual_sharding(input: torch.Tensor, sharding: OpSharding) -> None:
    """Give each device its own copy of a tensor, in a manual region."""
    if _is_spread(input):
        _sharding.make_manual(input)


def _spmd_full_to_shard_shape(input: torch.Tensor) -> torch.Tensor:
    """Begin a manual region: give each device its part of a tensor, by the tensor's mark."""
    return _sharding.enter_manual_as_marked(input) if _is_spread(input) else input.clone()


def _spmd_shard_to_full_shape(
    input: torch.Tensor, sharding: OpSharding, output_shape: Sequence[int], output_type: object = None
) -> torch.Tensor:
    """End a manual region: combine the devices' values to a tensor of `output_shape`."""
    if not _is_spread(input):
        return input.clone()
    return _sharding.leave_manual(input, _sharding.sharding_as(input, sharding), tuple(output_shape))


def _xla_spmd_all_reduce(
    reduce_type: str, input: torch.Tensor, scale: float, groups: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Sum over the devices of each group (without groups, over all), times `scale`, in a manual region."""
    _refuse_other_than_sum("_xla_spmd_all_reduce", reduce_type)
    return _sharding.all_reduce_manual(input, scale, _groups(groups))


def _xla_spmd_reduce_scatter(
    reduce_type: str,
    input: torch.Tensor,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Sequence[Sequence[int]],
) -> torch.Tensor:
    """Sum as `_xla_spmd_all_reduce` does, and keep on each device of a group its part along `scatter_dim`."""
    _refuse_other_than_sum("_xla_spmd_reduce_scatter", reduce_type)
    if input.shape[scatter_dim] % shard_count:
        raise ValueError(
            f"_xla_spmd_reduce_scatter(): dimension {scatter_dim} of a tensor of shape {list(input.shape)} has not "
            f"{shard_count} equal parts"
        )
    return _sharding.reduce_scatter_manual(input, scale, scatter_dim % input.dim(), shard_count, _groups(groups))


def _refuse_other_than_sum(name: str, reduce_type: str) -> None:
    if reduce_type != "sum":
        raise ValueError(f"{name}(): expected the reduction 'sum', not {reduce_type!r}")


def _groups(groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(member) for member in group) for group in groups or ())


def _global_tensor_from_cpu_shards(
    shards_: Tensors, sharding: OpSharding, global_shape: Sequence[int] | None = None
) -> torch.Tensor:
    """Assemble a tensor from these CPU tensors, one for each device of this process, in their order.

    Parts are of one size, padded where the whole is not divided evenly. `global_shape` is its shape, by default what
    the parts make together. Raises `RuntimeError` for parts of another number or size.
    """
    if not shards_:
        raise RuntimeError("_global_tensor_from_cpu_shards(): there are no shards; give one for each device")
    first = shards_[0]
    counts = sharding.tiles.shape[:-1] if sharding.tile_assignment else (1,) * first.dim()
    if first.dim() != len(counts):
        raise RuntimeError(
            f"_global_tensor_from_cpu_shards(): the sharding {sharding} has {len(counts)} dimensions; the first "
            f"shard has the shape {list(first.shape)}"
        )
    size = [length * count for length, count in zip(first.shape, counts, strict=True)]
    whole = torch.empty(size if global_shape is None else tuple(global_shape), dtype=first.dtype, device="xla")
    if _is_spread(whole):
        _xla_mark_sharding(whole, sharding)
    _sharding.load_local_shards(whole, list(shards_))
    return whole
