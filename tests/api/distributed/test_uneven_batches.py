"""A batch that the devices cannot share evenly is counted, and arrives whole; one that they can is not."""

import numpy as np
import pytest
import torch

import torch_xla.distributed.spmd as xs
from tests.support.four_behind_one import spread_device
from torch_xla._engine.metrics import counters
from torch_xla.distributed.spmd import inputs


@pytest.mark.parametrize(("rows", "counted"), [(8, None), (5, 1)])
def test_only_uneven_batches_are_counted(rows: int, counted: int | None) -> None:
    batch = torch.arange(rows * 2.0).view(rows, 2)
    mesh = xs.Mesh(np.arange(4), (4,), ("data",))
    with spread_device() as device:
        made = inputs.upload(batch, device, mesh, ("data", None), minibatch=False)
        assert made.cpu().equal(batch)
    assert counters.value_of("UnevenInput") == counted
