"""Shardings as XLA writes them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.ir.op_sharding import OpSharding, ShardingType, XlaShardingSpec, of_tiles, tiling


@pytest.mark.parametrize(
    ("sharding", "text"),
    [
        (OpSharding([], [], [], ShardingType.REPLICATED), "{replicated}"),
        (OpSharding([], [], [], ShardingType.MANUAL), "{manual}"),
        (OpSharding([1], [], [], ShardingType.MAXIMAL), "{maximal device=1}"),
        (OpSharding([[0, 1], [2, 3]], [], [], ShardingType.TILED), "{devices=[2,2]0,1,2,3}"),
        (
            OpSharding([[0, 2], [1, 3]], [[0], [1]], [[0, 2], [1, 3]], ShardingType.PARTIAL),
            "{devices=[2,2]0,2,1,3 last_tile_dim_replicate}",
        ),
    ],
)
def test_a_sharding_reads_as_in_hlo(sharding: OpSharding, text: str) -> None:
    assert str(sharding) == text


@st.composite
def meshes(draw: Any) -> tuple[np.ndarray, tuple[tuple[int, ...], ...]]:
    """A mesh of devices in any order, and axes of it for the dimensions of a tensor."""
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    devices = np.array(draw(st.permutations(range(int(np.prod(shape)))))).reshape(shape)
    axes = draw(st.permutations(range(len(shape))))
    dims: list[list[int]] = [[] for _ in range(draw(st.integers(1, 3)))]
    for axis in axes[: draw(st.integers(0, len(axes)))]:
        dims[draw(st.integers(0, len(dims) - 1))].append(axis)
    return devices, tuple(map(tuple, dims))


@given(meshes())
def test_a_device_has_the_part_that_its_place_in_the_mesh_says(case: tuple[np.ndarray, Any]) -> None:
    mesh, dims = case
    found = tiling(mesh, dims)
    parts = [int(np.prod([mesh.shape[axis] for axis in axes], dtype=int)) for axes in dims]
    if found.sharding_type == ShardingType.REPLICATED:
        assert set(parts) == {1}
        assert (
            sorted(found.replication_groups[0]) == sorted(mesh.ravel()) if mesh.size > 1 else not found.tile_assignment
        )
        return
    tiles = found.tiles
    assert list(tiles.shape[:-1]) == parts
    assert (found.sharding_type == ShardingType.PARTIAL) == (tiles.shape[-1] > 1)
    for place in np.ndindex(*mesh.shape):
        part = tuple(
            int(np.ravel_multi_index([place[a] for a in axes], [mesh.shape[a] for a in axes])) if axes else 0
            for axes in dims
        )
        assert mesh[place] in tiles[part]
    assert of_tiles(tiles) == found


def test_what_is_on_the_host_says_whether_it_is_a_part_of_the_batch() -> None:
    one, other = (XlaShardingSpec(None, [[0], [1]], [], [], 3, minibatch=is_part) for is_part in (False, True))
    assert (one.minibatch, other.minibatch) == (False, True)
    assert str(one) == str(other) == "{devices=[2,1]0,1}"
    assert one != other and one == XlaShardingSpec(None, [[0], [1]], [], [], 3)
