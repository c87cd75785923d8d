"""The parts of a divided value go to the host and back, each with its place in the whole."""

from collections.abc import Iterator

import pytest
import torch

from tests.support.four_behind_one import ALL, COLUMNS, ROWS, on, spread_device
from torch_xla._engine.ir.sharding import Sharding
from torch_xla._engine.sharding import addressable_shards, placement
from torch_xla._engine.tensor.device import Device


@pytest.fixture
def device() -> Iterator[Device]:
    with spread_device() as device:
        yield device


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
@pytest.mark.parametrize("sharding", [None, ROWS, COLUMNS, ALL], ids=["none", "rows", "columns", "all"])
@pytest.mark.parametrize("size", [(8, 4), (5, 3)], ids=["even", "uneven"])
def test_the_parts_together_are_the_whole(
    size: tuple[int, int], sharding: Sharding | None, dtype: torch.dtype, device: Device
) -> None:
    host = torch.arange(size[0] * size[1]).view(size).to(dtype)
    found = addressable_shards.local_shards(on(device, host, sharding))
    assert [each.device for each in found] == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    whole = torch.zeros(size, dtype=dtype)
    for each in found:
        assert each.data.equal(host[each.indices]) and each.data.dtype is dtype
        assert each.padded.shape == found[0].padded.shape
        whole[each.indices] = each.data
    assert whole.equal(host)
    parts = addressable_shards.local_parts(on(device, host, sharding))
    assert {begin: part.array.tolist() for begin, part in parts.items()} == {
        each.begin: host[each.indices].float().numpy().tolist() for each in found if each.data.numel()
    }
    places = addressable_shards.local_places(on(device, host, sharding))
    assert places == [(each.begin, tuple(each.data.shape)) for each in found]


def test_a_copy_is_told_from_the_part_it_is_a_copy_of(device: Device) -> None:
    x = on(device, torch.arange(8.0).view(4, 2), ROWS)
    assert sorted(each.replica for each in addressable_shards.local_shards(x)) == [0, 0, 1, 1]
    parts = addressable_shards.local_parts(x)
    assert {begin: (part.array.tolist(), part.is_first) for begin, part in parts.items()} == {
        (0, 0): ([[0, 1], [2, 3]], True),
        (2, 0): ([[4, 5], [6, 7]], True),
    }


@pytest.mark.parametrize("size", [(8, 2), (5, 2)], ids=["even", "uneven"])
def test_parts_are_written_back(size: tuple[int, int], device: Device) -> None:
    host = torch.arange(size[0] * size[1], dtype=torch.float32).view(size)
    x = on(device, torch.zeros(size), ALL)
    parts = [host[begin[0] : begin[0] + length[0]] for begin, length in addressable_shards.local_places(x)]
    addressable_shards.load_local_shards(x, parts)
    assert x.cpu().equal(host) and placement.sharding_of(x) == ALL
    assert (x * 2).cpu().equal(host * 2)


def test_parts_that_do_not_fit_are_refused_and_nothing_is_written(device: Device) -> None:
    x = on(device, torch.ones(8, 2), ALL)
    part = torch.zeros(2, 2)
    for parts, text in (
        ([part] * 3, r"got 3 shards for the 4 devices of this process"),
        (
            [part, part, torch.zeros(2, 3), part],
            r"the shard for CPU:2 is torch.float32 of shape \[2, 3\]; expected torch",
        ),
        (
            [part, part, part, part.double()],
            r"the shard for CPU:3 is torch.float64 of shape \[2, 2\]; expected torch.float",
        ),
    ):
        with pytest.raises(RuntimeError, match=text):
            addressable_shards.load_local_shards(x, parts)
    assert x.cpu().equal(torch.ones(8, 2))
