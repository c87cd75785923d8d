"""Manual sharding: regions in which each device computes on its own part."""

import torch

from ..ir.call_plan import Operand, Plan, interned
from ..ir.sharding import MANUAL, Free, Sharding
from ..ir.tape import Value
from ..ir.value_spec import Spec, contiguous_stride, spec_of
from ..lowering.machinery.jax_sharding import carried, parts_of, to_jax
from ..lowering.machinery.manual_regions import ALL_REDUCE, FULL_TO_SHARD, REDUCE_SCATTER, SHARD_TO_FULL
from ..runtime.device_assignment import Target
from ..tensor.device import LOCK
from ..tensor.storage import hold, record_plan, snapshot, value_of, wrap
from .placement import foreseen as foreseen_sharding


def _recorded(tensor: torch.Tensor, op: str, arguments: tuple[object, ...], size: tuple[int, ...]) -> Value:
    with LOCK:
        value = snapshot(tensor)
        made: Spec = spec_of(size, contiguous_stride(size), value.spec.dtype)
        plan = interned(Plan(op, ((Operand(0), *arguments), {}), (value.spec,), (), (made,)))
        (result,) = record_plan(plan, (value,), value.device)
    return result


def size_of_part(size: tuple[int, ...], sharding: Sharding | None, target: Target) -> tuple[int, ...]:
    """Return the size of each device's part of a value of this size, including padding."""
    whole = carried(size, to_jax(sharding, target))
    parts = parts_of(sharding, len(size), target)
    return tuple(length // count for length, count in zip(whole, parts, strict=True))


def enter(tensor: torch.Tensor, sharding: Sharding | None) -> torch.Tensor:
    """Return one tensor with the size of a part of `tensor`; each device has its own value of it.

    Raises `RuntimeError` if each device has its own value of `tensor` already.
    """
    if foreseen_sharding(tensor) == MANUAL:
        raise RuntimeError(
            f"each device has its own value of this tensor of shape {list(tensor.shape)}: it has no parts. End "
            "its manual region first, by disable_manual_sharding(t, partition_spec, full_shape)."
        )
    return wrap(_entered(tensor, sharding))


def enter_as_marked(tensor: torch.Tensor) -> torch.Tensor:
    """Enter the region with the sharding that a tensor has. Raises `RuntimeError` if that is not determined."""
    lies = foreseen_sharding(tensor)
    if isinstance(lies, Free):
        raise RuntimeError(
            f"_spmd_full_to_shard_shape(): this tensor of shape {list(tensor.shape)} has no sharding. Mark it "
            "first, by mark_sharding(t, mesh, partition_spec)."
        )
    return enter(tensor, lies)


def _entered(tensor: torch.Tensor, sharding: Sharding | None) -> Value:
    size = size_of_part(tuple(tensor.shape), sharding, value_of(tensor).device.target)
    return _recorded(tensor, FULL_TO_SHARD, (sharding,), size)


def make_manual(tensor: torch.Tensor) -> None:
    """Give each device its own copy of `tensor`, unless it has one."""
    if foreseen_sharding(tensor) != MANUAL:
        hold(tensor, _entered(tensor, None))


def leave(
    tensor: torch.Tensor, sharding: Sharding | None, size: tuple[int, ...], is_summed: bool = False
) -> torch.Tensor:
    """Return the value of this size whose parts the devices have; of copies the first, or with `is_summed` their
    sum.
    """
    return wrap(_recorded(tensor, SHARD_TO_FULL, (sharding, size, is_summed), size))


def copies_of(sharding: Sharding | None, rank: int, target: Target) -> int:
    """Return the number of devices with the same part."""
    count = len(target.devices)
    for parts in parts_of(sharding, rank, target):
        count //= parts
    return count


def all_reduce(tensor: torch.Tensor, scale: float, groups: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    """Return the sum over the devices of each group, times `scale`."""
    return wrap(_recorded(tensor, ALL_REDUCE, (scale, groups), tuple(tensor.shape)))


def reduce_scatter(
    tensor: torch.Tensor, scale: float, dim: int, count: int, groups: tuple[tuple[int, ...], ...]
) -> torch.Tensor:
    """Sum as `all_reduce` does, and keep on each of the `count` devices of a group its part along `dim`."""
    size = tuple(length // count if index == dim else length for index, length in enumerate(tensor.shape))
    return wrap(_recorded(tensor, REDUCE_SCATTER, (scale, dim, groups), size))
