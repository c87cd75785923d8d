"""Convert shardings to JAX's and back, and the operation that constrains a value to one.

The devices of a target form a grid whose sides are primes. Every mesh of the same devices in the same order then has
axes that are products of axes of the grid: a mesh of 2 × 4 is a grid of 2 × 2 × 2.
"""

import functools
import math
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import NamedSharding, PartitionSpec

from ...ir.call_plan import Plan
from ...ir.sharding import MANUAL, Sharding, fitting, sharding_by
from ...runtime import buffers
from ...runtime.device_assignment import Target
from .registry import lowers
from .replica_axis import spread_target

CONSTRAINT = "xla::sharding_constraint"

# The axis along which each device has a value of its own.
EACH_DEVICE = "each device"


@functools.lru_cache(maxsize=64)
def flat_mesh(target: Target) -> jax.sharding.Mesh:
    """Return the devices of `target` in a row."""
    return jax.sharding.Mesh(np.array(target.devices, dtype=object), [EACH_DEVICE])


@functools.lru_cache(maxsize=4096)
def to_jax(sharding: Sharding | None, target: Target) -> Any:
    """Return JAX's sharding over the devices of `target`."""
    if sharding is None:
        return target.everywhere
    if sharding.is_manual:
        return NamedSharding(flat_mesh(target), PartitionSpec(EACH_DEVICE))
    assert target.mesh is not None
    names = target.mesh.axis_names
    return NamedSharding(target.mesh, PartitionSpec(*[tuple(names[axis] for axis in axes) for axes in sharding.dims]))


@functools.lru_cache(maxsize=4096)
def carried(size: tuple[int, ...], sharding: jax.sharding.Sharding) -> tuple[int, ...]:
    """Return the size of the array that carries a value of this `size` where JAX's `sharding` divides it.

    JAX has no parts of different sizes: a dimension is made longer until its parts are equal, and what is behind the
    value's own end means nothing.
    """
    if not isinstance(sharding, NamedSharding):
        return size
    if EACH_DEVICE in sharding.mesh.axis_names:
        return (sharding.mesh.size, *size)
    sides, spec = sharding.mesh.shape, tuple(sharding.spec)
    found = list(size)
    for dim, axes in enumerate(spec):
        names = axes if isinstance(axes, tuple) else () if axes is None else (axes,)
        parts = math.prod(sides[name] for name in names)
        found[dim] = -(-found[dim] // parts) * parts
    return tuple(found)


def logical(buffer: jax.Array, size: tuple[int, ...], target: Target) -> jax.Array:
    """Return the buffer of a value of this `size` without the padding at its end.

    Raises `RuntimeError` for a value in a manual region, where each device has its own value.
    """
    if buffer.ndim != len(size):
        refuse_manual(size)
    return buffer if buffer.shape == size else buffers.place(buffer, target.everywhere, size)


def refuse_manual(size: tuple[int, ...]) -> NoReturn:
    """Raise the error for reading, as one value, a tensor of a manual region, where each device has its own value."""
    raise RuntimeError(
        f"each device has a value of its own of this tensor of shape {list(size)}: it was computed between "
        "enable_manual_sharding() and disable_manual_sharding(). Read what disable_manual_sharding(t, partition_spec, "
        "full_shape) returns, or the values one by one: wrap_as_sharded_tensor(t).local_shards."
    )


def of_array(array: jax.Array, target: Target) -> Sharding | None:
    """Return the sharding of an array over the devices of `target`; `None` if each has all of it."""
    return from_jax(array.sharding, array.shape, target)


@functools.lru_cache(maxsize=4096)
def over_mesh(
    devices: tuple[jax.Device, ...], shape: tuple[int, ...], dims: tuple[tuple[int, ...], ...], target: Target
) -> Sharding | None:
    """Return the sharding that divides dimensions along these axes of a mesh of `devices`, which are those of
    `target`.
    """
    names = [str(axis) for axis in range(len(shape))]
    mesh = jax.sharding.Mesh(np.array(devices, dtype=object).reshape(shape), names)
    spec = PartitionSpec(*[tuple(names[axis] for axis in axes) for axes in dims])
    size = tuple(math.prod(shape[axis] for axis in axes) for axes in dims)
    return from_jax(NamedSharding(mesh, spec), size, target)


def parts_of(sharding: Sharding | None, rank: int, target: Target) -> tuple[int, ...]:
    """Return the number of parts of each of `rank` dimensions."""
    if sharding is None or target.mesh is None:
        return (1,) * rank
    sides = target.mesh.devices.shape
    counts = [math.prod(sides[axis] for axis in axes) for axes in sharding.dims]
    return tuple(counts + [1] * (rank - len(counts)))


def tiles_of(sharding: Sharding | None, rank: int, target: Target) -> np.ndarray:
    """Return for each part of a value the indices in `target.devices` of its devices, along the last axis."""
    parts = parts_of(sharding, rank, target)
    if target.mesh is None:
        return np.zeros((*parts, 1), np.int64)
    grid = np.arange(len(target.devices)).reshape(target.mesh.devices.shape)
    taken = [axis for axes in (sharding.dims if sharding else ()) for axis in axes]
    rest = [axis for axis in range(grid.ndim) if axis not in taken]
    return grid.transpose(taken + rest).reshape(*parts, -1)


@functools.lru_cache(maxsize=4096)
def lies_on(sharding: jax.sharding.Sharding, target: Target) -> bool:
    """Return whether an array with this sharding is on exactly the devices of `target`, in their order."""
    mesh = getattr(sharding, "mesh", None)
    if mesh is not None:
        return tuple(mesh.devices.flat) == target.devices
    return len(target.devices) == 1 and sharding.device_set == set(target.devices)


@functools.lru_cache(maxsize=4096)
def from_jax(sharding: jax.sharding.Sharding, size: tuple[int, ...], target: Target) -> Sharding | None:
    """Convert JAX's sharding, over any mesh, of a value of this size to one over the devices of `target`."""
    if EACH_DEVICE in getattr(getattr(sharding, "mesh", None), "axis_names", ()):
        return MANUAL
    if sharding.is_fully_replicated or target.mesh is None:
        return None
    size = tuple(length or len(target.devices) for length in size)  # no elements show no parts
    parts = sharding.devices_indices_map(size)
    grid = target.mesh.devices
    dims: list[tuple[int, ...]] = []
    for dim, length in enumerate(size):
        whole = sharding.shard_shape(size)[dim]
        step = {}  # how far in parts of this dimension one step along each axis of the grid leads
        for axis in range(grid.ndim):
            next_one = tuple(int(other == axis) for other in range(grid.ndim))
            begin = parts[grid[next_one]][dim].start or 0
            if begin and whole < length:
                step[axis] = begin
        dims.append(tuple(sorted(step, key=lambda axis: -step[axis])))  # noqa: B023
    found = sharding_by(tuple(dims))
    if to_jax(found, target).devices_indices_map(size) != parts:
        raise NotImplementedError(
            f"{sharding} divides a value of size {list(size)} in a way that does not fit the grid of {grid.shape} "
            f"devices of {target}. Give the mesh its devices in the order of their ordinals."
        )
    return found


def sharding_in(plan: Plan) -> Sharding | None:
    """Return the sharding that an operation on a value and a sharding was recorded with."""
    sharding = plan.arguments[0][1]
    assert sharding is None or isinstance(sharding, Sharding)
    return sharding


@lowers(CONSTRAINT)
def constrain(array: jax.Array, sharding: Sharding | None) -> jax.Array:
    """Return `array`, divided so where the program runs on several devices; on one there is nothing to divide."""
    target = spread_target()
    if target is None:
        return array
    return jax.lax.with_sharding_constraint(array, to_jax(fitting(sharding, array.shape), target))


def whole_along(array: jax.Array, dims: Collection[int]) -> jax.Array:
    """Return `array` with all of `dims` on each device; XLA decides on the other dimensions as before.

    This is for operations that XLA's partitioner cannot divide along `dims`: it crashes, or computes a wrong result.
    """
    target = spread_target()
    if target is None or not dims:
        return array
    assert target.mesh is not None
    spec = PartitionSpec(*[None if dim in dims else PartitionSpec.UNCONSTRAINED for dim in range(array.ndim)])
    return jax.lax.with_sharding_constraint(array, NamedSharding(target.mesh, spec))


def in_order(array: jax.Array) -> jax.Array:
    """Return `array`, whose last dimension is the innermost in memory where the program runs on several devices.

    For operations that XLA's compiler for the CPU knows in that order alone: it would have them read what it has just
    gathered in the order in which that came.
    """
    return array if spread_target() is None else with_layout_constraint(array, Layout(tuple(range(array.ndim))))


def spaced(array: jax.Array, fill: jax.Array, margins: Sequence[tuple[int, int, int]]) -> jax.Array:
    """Call `lax.pad`, before and behind which dimensions whose elements move apart are whole.

    Divided there, XLA's partitioner puts elements elsewhere or ends in an error, in plain JAX too.
    """
    apart = [dim for dim, (_, _, between) in enumerate(margins) if between]
    return whole_along(jax.lax.pad(whole_along(array, apart), fill, margins), apart)


def uneven(array: jax.Array, dims: Collection[int]) -> list[int]:
    """Return the dimensions in `dims` that all devices cannot divide evenly, and that may therefore have padding."""
    target = spread_target()
    return [] if target is None else [dim for dim in dims if array.shape[dim] % len(target.devices)]


def whole_rows(indices: jax.Array) -> jax.Array:
    """Return `indices` for a lookup, with all of the uneven dimensions, except the first, on each device.

    XLA's partitioner cannot compile a lookup with padded indices in a table whose rows are divided along the same axis.
    """
    return whole_along(indices, uneven(indices, range(1, indices.ndim)))


def zero_behind_ends(array: jax.Array) -> jax.Array:
    """Return `array` with zeros in the padding of each dimension that is divided unevenly.

    This is for updates that are added at indices: XLA's partitioner also adds the padding, at index 0, in plain JAX
    too.
    A dimension of one element stays whole: XLA knows its index, and removes the comparison.
    """
    dims = uneven(array, range(array.ndim))
    array = whole_along(array, [dim for dim in dims if array.shape[dim] == 1])
    for dim in [dim for dim in dims if array.shape[dim] > 1]:
        place = jax.lax.broadcasted_iota(np.int32, array.shape, dim)
        array = jax.lax.select(place < array.shape[dim], array, jax.lax.full_like(array, 0))
    return array
