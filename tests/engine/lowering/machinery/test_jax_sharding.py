"""How values are divided, as the engine says it and as JAX says it."""

import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from torch_xla._engine.ir.sharding import MANUAL, Sharding, sharding_by
from torch_xla._engine.lowering.machinery import jax_sharding as lowering
from torch_xla._engine.lowering.machinery.jax_sharding import (
    carried,
    from_jax,
    lies_on,
    over_mesh,
    parts_of,
    tiles_of,
    to_jax,
)
from torch_xla._engine.lowering.machinery.replica_axis import lowering_for
from torch_xla._engine.runtime import abstract_devices, device_assignment, platform
from torch_xla._engine.runtime.device_assignment import Target


def eight() -> Target:
    return device_assignment.of_mesh(abstract_devices.virtual_devices(8))


AXES = st.permutations([0, 1, 2]).flatmap(
    lambda order: st.lists(st.integers(0, 3), min_size=2, max_size=2).map(
        lambda cuts: tuple(tuple(order[low:high]) for low, high in itertools.pairwise([0, *sorted(cuts)]))
    )
)


@settings(max_examples=40)
@given(AXES)
def test_there_and_back(dims: tuple[tuple[int, ...], ...]) -> None:
    sharding = sharding_by(dims)
    placed = to_jax(sharding, eight())
    assert from_jax(placed, (16, 24), eight()) == sharding and lies_on(placed, eight())
    assert carried((16, 24), placed) == (16, 24)


@settings(max_examples=40)
@given(AXES, st.tuples(st.integers(1, 20), st.integers(1, 20)))
def test_parts_are_of_one_size_and_as_small_as_can_be(dims: tuple[tuple[int, ...], ...], size: tuple[int, int]) -> None:
    sharding = sharding_by(dims)
    found = carried(size, to_jax(sharding, eight()))
    for given_size, length, parts in zip(size, found, parts_of(sharding, 2, eight()), strict=True):
        assert length % parts == 0 and given_size <= length < given_size + parts
    tiles = tiles_of(sharding, 2, eight())
    assert tiles.shape[:2] == parts_of(sharding, 2, eight()) and sorted(tiles.flat) == list(range(8))


@settings(max_examples=20)
@given(AXES)
def test_tiles_are_where_jax_puts_the_parts(dims: tuple[tuple[int, ...], ...]) -> None:
    sharding = sharding_by(dims)
    whole = np.arange(16 * 24).reshape(16, 24)
    places = to_jax(sharding, eight()).devices_indices_map(whole.shape)
    tiles = tiles_of(sharding, 2, eight())
    rows, columns = (length // parts for length, parts in zip(whole.shape, tiles.shape[:2], strict=True))
    for row, column in itertools.product(*map(range, tiles.shape[:2])):
        part = whole[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns]
        for place in tiles[row, column]:
            np.testing.assert_array_equal(whole[places[eight().devices[place]]], part)


def test_a_mesh_of_any_shape_over_the_same_devices() -> None:
    devices = eight().devices
    assert over_mesh(devices, (2, 4), ((0,), (1,)), eight()) == Sharding(((0,), (1, 2)))
    assert over_mesh(devices, (8,), ((), (0,)), eight()) == Sharding(((), (0, 1, 2)))
    assert over_mesh(devices, (4, 2), ((1, 0),), eight()) == Sharding(((2, 0, 1),))
    assert over_mesh(devices, (2, 4), ((), ()), eight()) is None
    other_order = tuple(reversed(devices))
    with pytest.raises(NotImplementedError, match="Give the mesh its devices in the order of their ordinals"):
        over_mesh(other_order, (8,), ((0,),), eight())


def test_values_without_elements_and_whole_ones() -> None:
    mesh = eight().mesh
    assert mesh is not None
    assert from_jax(NamedSharding(mesh, PartitionSpec()), (4,), eight()) is None
    assert from_jax(to_jax(None, eight()), (4,), eight()) is None
    for dims in (((0,),), ((), (1, 2)), ((0, 2), (1,))):
        assert from_jax(to_jax(Sharding(dims), eight()), (0, 4), eight()) == Sharding(dims)
    alone = device_assignment.of_device(platform.local_devices()[0])
    assert parts_of(None, 3, alone) == (1, 1, 1) and tiles_of(None, 2, alone).shape == (1, 1, 1)


def test_a_value_of_each_device() -> None:
    placed = to_jax(MANUAL, eight())
    assert from_jax(placed, (8, 4), eight()) == MANUAL and carried((4,), placed) == (8, 4)
    alone = device_assignment.of_device(platform.local_devices()[0])
    with pytest.raises(RuntimeError, match=r"each device has a value of its own of this tensor of shape \[4\]"):
        lowering.logical(jax.numpy.ones((8, 4)), (4,), alone)


def test_where_an_array_lies() -> None:
    here = platform.local_devices()[0]
    alone = device_assignment.of_device(here)
    array = jax.device_put(np.ones(3), here)
    assert lies_on(array.sharding, alone) and not lies_on(array.sharding, eight())
    assert not lies_on(to_jax(None, eight()), alone)
    assert lowering.of_array(array, alone) is None and math.prod(eight().mesh.devices.shape) == 8  # type: ignore[union-attr]


def test_a_constraint_is_for_several_devices() -> None:
    array = jax.numpy.ones(4)
    assert lowering.constrain(array, Sharding(((0,),))) is array
    assert lowering.whole_along(array, [0]) is array and lowering.zero_behind_ends(array) is array


def test_what_lies_behind_an_end_is_zero_where_devices_divide_unevenly() -> None:
    array = jax.numpy.ones((3, 8, 1))
    with lowering_for(eight()):
        assert lowering.uneven(array, range(3)) == [0, 2]
        traced = str(jax.make_jaxpr(lowering.zero_behind_ends)(array))
        assert traced.count("iota") == 1 and traced.count("sharding_constraint") == 1
