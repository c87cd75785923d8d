"""Operators that mark shardings: outside of a graph they mark, or return a copy if nothing is divided."""

import pytest
import torch

from tests.support.four_behind_one import ROWS, on, spread_device
from torch_xla._engine.sharding import placement
from torch_xla._engine.step import donation
from torch_xla._engine.step.sync import sync_device
from torch_xla._engine.tensor import sharding_annotations
from torch_xla._engine.tensor.storage import value_of

XLA = torch.ops.xla
X = torch.arange(8.0).view(4, 2)


def test_on_one_device_and_on_the_host_there_is_nothing_to_divide() -> None:
    for x in (X, X.to("xla")):
        made = XLA.dynamo_mark_sharding(x, [0], [1, 1], "('x', 'y')", "('x', None)")
        assert made is not x and made.device == x.device and made.tolist() == X.tolist()


def test_a_tensor_is_marked_and_a_copy_is_given() -> None:
    with spread_device() as device:
        x = on(device, X)
        made = XLA.dynamo_mark_sharding(x, [0, 1, 2, 3], [2, 2], "('x', 'y')", "('x', None)")
        sync_device(device)
        mark = sharding_annotations.mark_of(x)
        assert mark is not None and mark.sharding == ROWS == placement.sharding_of(x)
        assert made is not x and made.cpu().equal(X)


def test_words_that_say_no_partition_are_refused() -> None:
    with pytest.raises(ValueError, match="dynamo_mark_sharding"):
        XLA.dynamo_mark_sharding(X, [0], [1], "not python", "('x', None)")
    with pytest.raises(ValueError, match="aot_mark_sharding"):
        XLA.aot_mark_sharding(X.to("xla"), '{"mesh_shape": [1], "device_ids": [0], "axis_names": "x"}', "nonsense")


def test_memory_is_marked_as_one_that_may_be_taken() -> None:
    x = torch.ones(3).to("xla")
    assert XLA.dynamo_set_buffer_donor_(x, True) is x and donation.slots_of([value_of(x)]) == (0,)
    XLA.dynamo_set_buffer_donor_(x, False)
    assert donation.slots_of([value_of(x)]) == ()
    host = torch.ones(3)
    assert XLA.dynamo_set_buffer_donor_(host, True) is not host


def test_a_constraint_divides_the_result_alone() -> None:
    mesh = "{'mesh_shape': (2, 2), 'device_ids': [0, 1, 2, 3], 'axis_names': ('x', 'y')}"
    with spread_device() as device:
        x = on(device, X)
        made = XLA.aot_mark_sharding(x, mesh, "('x', None)")
        assert sharding_annotations.mark_of(x) is None and placement.sharding_of(made) == ROWS
        assert placement.sharding_of(x) is None and made.cpu().equal(X)
