"""Lower manual sharding: values that differ on each device.

The array for such a value has an additional leading dimension, with one element for each device. Each device computes
an operation on its own element; operands that are ordinary values are available on all devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from ...ir.call_plan import Plan
from ...ir.graph import Graph
from ...ir.sharding import MANUAL, Sharding
from ...runtime.buffers import resized
from ...runtime.device_assignment import Target
from . import replica_axis
from .jax_sharding import EACH_DEVICE, carried, flat_mesh, sharding_in, to_jax
from .lower_call import lower
from .registry import lowers

FULL_TO_SHARD = "xla::full_to_shard"
SHARD_TO_FULL = "xla::shard_to_full"
ALL_REDUCE = "xla::manual_all_reduce"
REDUCE_SCATTER = "xla::manual_reduce_scatter"

_OF_EACH = PartitionSpec(EACH_DEVICE)
_COLLECTIVES = {ALL_REDUCE, REDUCE_SCATTER}


@dataclass(frozen=True)
class Manual:
    """The array for a value that differs on each device."""

    array: jax.Array


def slots_of(graph: Graph) -> frozenset[int]:
    """Return the slots of a graph whose values differ on each device."""
    found = {slot for slot, spec in enumerate(graph.inputs) if spec.sharding == MANUAL}
    for operation in graph.operations:
        op = operation.plan.op
        if op == FULL_TO_SHARD or (op != SHARD_TO_FULL and not found.isdisjoint(operation.operands)):
            found.update(range(operation.first_output, operation.first_output + len(operation.plan.outputs)))
    return frozenset(found)


def lower_on_devices(
    plan: Plan, operands: list[Any], numbers: list[jax.Array | float], key: jax.Array | None
) -> list[Any]:
    """Do the same as `lower`, for operands that may differ on each device."""
    target = replica_axis.target_in_use()
    if target is None or not target.is_spread:
        return lower(plan, operands, numbers, key)
    if plan.op == FULL_TO_SHARD:
        return [Manual(_apart(operands[0], sharding_in(plan), target))]
    if plan.op == SHARD_TO_FULL:
        size, is_summed = plan.arguments[0][2:]
        assert isinstance(size, tuple)
        return [_together(operands[0], sharding_in(plan), size, bool(is_summed), target)]
    if not any(isinstance(operand, Manual) for operand in operands):
        return lower(plan, operands, numbers, key)
    return _on_each(plan, operands, numbers, key, target)


def _on_each(
    plan: Plan, operands: list[Any], numbers: list[Any], key: jax.Array | None, target: Target
) -> list[Manual]:
    given = [operand.array if isinstance(operand, Manual) else operand for operand in operands]
    dynamic = [index for index, number in enumerate(numbers) if isinstance(number, jax.Array)]
    taken = [*given, *[numbers[index] for index in dynamic], *([] if key is None else [key])]
    specs = [_OF_EACH if isinstance(operand, Manual) else PartitionSpec() for operand in operands]
    specs += [PartitionSpec()] * (len(taken) - len(given))

    def own(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        mine = [
            array[0] if isinstance(operand, Manual) else array for array, operand in zip(arrays, operands, strict=False)
        ]
        filled = list(numbers)
        for place, index in enumerate(dynamic):
            filled[index] = arrays[len(given) + place]
        with replica_axis.lowering_for(target if plan.op in _COLLECTIVES else None):
            return tuple(result[None] for result in lower(plan, mine, filled, None if key is None else arrays[-1]))

    results = jax.shard_map(own, mesh=flat_mesh(target), in_specs=tuple(specs), out_specs=_OF_EACH, check_vma=False)(
        *taken
    )
    return [Manual(result) for result in results]


def _apart(array: jax.Array, sharding: Sharding | None, target: Target) -> jax.Array:
    assert target.mesh is not None
    placed = to_jax(sharding, target)
    whole = resized(array, carried(array.shape, placed))
    every = PartitionSpec(target.mesh.axis_names)
    apart: jax.Array = jax.shard_map(
        lambda own: own[None], mesh=target.mesh, in_specs=placed.spec, out_specs=every, check_vma=False
    )(whole)
    return apart


def _together(
    operand: Any, sharding: Sharding | None, size: tuple[int, ...], is_summed: bool, target: Target
) -> jax.Array:
    """Return the whole value from the devices' parts: with `is_summed` the sums of copies, else the first copies."""
    assert target.mesh is not None
    names = target.mesh.axis_names
    placed = to_jax(sharding, target)
    taken = [axis for axes in (sharding.dims if sharding is not None else ()) for axis in axes]
    copies = [name for axis, name in enumerate(names) if axis not in taken]
    is_manual = isinstance(operand, Manual)

    def own(array: jax.Array) -> jax.Array:
        mine = array[0] if is_manual else array
        return jax.lax.psum(mine, copies) if is_summed and copies else mine

    given = operand.array if is_manual else operand
    spec = PartitionSpec(names) if is_manual else PartitionSpec()
    whole = jax.shard_map(own, mesh=target.mesh, in_specs=spec, out_specs=placed.spec, check_vma=False)(given)
    return resized(whole, size)  # type: ignore[no-any-return]


@lowers(FULL_TO_SHARD)
def _full_to_shard(array: jax.Array, sharding: object) -> jax.Array:
    return array  # on one device


@lowers(SHARD_TO_FULL)
def _shard_to_full(array: jax.Array, sharding: object, size: object, is_summed: bool) -> jax.Array:
    return array


@lowers(ALL_REDUCE)
def _all_reduce(array: jax.Array, scale: float, groups: tuple[tuple[int, ...], ...]) -> jax.Array:
    return _scaled(_sum(array, groups), scale)


@lowers(REDUCE_SCATTER)
def _reduce_scatter(array: jax.Array, scale: float, dim: int, groups: tuple[tuple[int, ...], ...]) -> jax.Array:
    if not _is_on_each():
        return _scaled(array, scale)
    found = jax.lax.psum_scatter(
        array, EACH_DEVICE, scatter_dimension=dim, axis_index_groups=groups or None, tiled=True
    )
    return _scaled(found, scale)


def _sum(array: jax.Array, groups: Sequence[Sequence[int]]) -> jax.Array:
    if not _is_on_each():
        return array
    found: jax.Array = jax.lax.psum(array, EACH_DEVICE, axis_index_groups=groups or None)
    return found


def _scaled(array: jax.Array, scale: float) -> jax.Array:
    return array if scale == 1 else array * np.asarray(scale, array.dtype)


def _is_on_each() -> bool:
    target = replica_axis.target_in_use()
    return target is not None and target.is_spread
