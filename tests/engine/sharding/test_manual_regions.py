"""Regions in which each of several devices computes on what it has: sizes of parts, the way in and the way out."""

import pytest
import torch

from tests.support.four_behind_one import ALL, COLUMNS, ROWS, on
from torch_xla._engine.ir.sharding import Sharding
from torch_xla._engine.sharding import manual_regions, placement
from torch_xla._engine.tensor.device import Device

X = torch.arange(24.0).view(8, 3)


@pytest.mark.parametrize(
    ("sharding", "part", "copies"),
    [(None, (8, 3), 4), (ROWS, (4, 3), 2), (COLUMNS, (8, 2), 2), (ALL, (2, 3), 1), (Sharding(((0,), (1,))), (4, 2), 1)],
    ids=["none", "rows", "columns", "all", "both"],
)
def test_each_device_has_a_part_of_equal_size_and_so_many_have_the_same(
    sharding: Sharding | None, part: tuple[int, ...], copies: int, device: Device
) -> None:
    assert manual_regions.size_of_part((8, 3), sharding, device.target) == part
    assert manual_regions.copies_of(sharding, 2, device.target) == copies


def test_each_device_computes_on_its_part(device: Device) -> None:
    own = manual_regions.enter(on(device, X, ROWS), ALL)
    assert own.shape == (2, 3)
    back = manual_regions.leave(own - own.sum(0), ALL, (8, 3))
    assert placement.foreseen(back) == ALL
    parts = X.view(4, 2, 3)
    assert back.cpu().equal((parts - parts.sum(1, keepdim=True)).view(8, 3))


def test_parts_are_exchanged(device: Device) -> None:
    own = manual_regions.enter(on(device, X), ALL)
    groups = ((0, 1), (2, 3))
    summed = manual_regions.leave(manual_regions.all_reduce(own, 0.5, groups), ALL, (8, 3))
    parts = X.view(2, 2, 2, 3)
    assert summed.cpu().equal((parts.sum(1, keepdim=True) * 0.5).expand(2, 2, 2, 3).reshape(8, 3))
    scattered = manual_regions.reduce_scatter(own, 1.0, 0, 2, groups)
    assert scattered.shape == (1, 3)
    assert manual_regions.leave(scattered, ALL, (4, 3)).cpu().equal(parts.sum(1).view(4, 3))


def test_copies_are_told_from_parts_on_the_way_out(device: Device) -> None:
    whole = on(device, X)
    manual_regions.make_manual(whole)
    assert whole.shape == (8, 3)
    assert placement.foreseen(manual_regions.leave(whole, None, (8, 3))) is None
    assert manual_regions.leave(whole * 2, None, (8, 3)).cpu().equal(X * 2)
    assert manual_regions.leave(whole, None, (8, 3), is_summed=True).cpu().equal(X * 4)
