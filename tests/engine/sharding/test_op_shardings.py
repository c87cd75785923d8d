"""Shardings of tensors are read and written in XLA's notation."""

import numpy as np
import pytest
import torch

from tests.support.four_behind_one import ALL, COLUMNS, ROWS, on
from torch_xla._engine.ir.op_sharding import OpSharding, XlaShardingSpec, of_tiles
from torch_xla._engine.ir.sharding import Sharding
from torch_xla._engine.sharding import op_shardings, placement
from torch_xla._engine.tensor.device import Device, device_at

X = torch.arange(24.0).view(8, 3)


@pytest.mark.parametrize(
    ("sharding", "text"),
    [
        (None, "{replicated}"),
        (ROWS, "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"),
        (COLUMNS, "{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}"),
        (ALL, "{devices=[4,1]0,1,2,3}"),
    ],
    ids=["none", "rows", "columns", "all"],
)
def test_what_is_written_of_a_tensor_can_be_said_of_another(
    sharding: Sharding | None, text: str, device: Device
) -> None:
    x = on(device, X, sharding)
    said = op_shardings.op_sharding_of(x)
    assert str(said) == text
    assert op_shardings.sharding_as(on(device, X), said) == sharding


def test_other_dimensions_and_other_devices_are_refused(device: Device) -> None:
    x = on(device, X)
    for grid in (np.arange(4).reshape(4, 1), np.arange(2).reshape(2, 1, 1), np.arange(4).reshape(2, 2, 1) + 1):
        said = of_tiles(grid)
        with pytest.raises(RuntimeError, match="does not describe a tensor of 2 dimensions on the 4 devices"):
            op_shardings.sharding_as(x, said)


def test_a_tensor_of_the_host_is_divided_on_its_way(device: Device) -> None:
    said = op_shardings.op_sharding_of(on(device, X, ROWS))
    spec = XlaShardingSpec(X, said.tile_assignment, said.group_assignment, said.replication_groups, said.sharding_type)
    made = op_shardings.uploaded(X, device, spec)
    assert placement.sharding_of(made) == ROWS and made.cpu().equal(X)


def test_on_one_device_there_is_nothing_to_divide() -> None:
    x = torch.ones(2, 3, device="xla")
    assert str(op_shardings.op_sharding_of(x)) == "{replicated}"
    assert op_shardings.sharding_as(x, OpSharding([], [], [], 0)) is None
    assert op_shardings.uploaded(X, device_at(0), None).tolist() == X.tolist()
