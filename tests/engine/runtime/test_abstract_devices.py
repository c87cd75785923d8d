"""While a step is planned, buffers have sizes and placements, no memory, and the elements that are known anyway."""

import gc
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from torch_xla._engine.errors import NotComputed
from torch_xla._engine.runtime import abstract_devices, platform
from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.runtime.abstract_devices import (
    PlannedBuffer,
    in_place_of_buffers,
    of_host,
    suspended,
    virtual_devices,
)

ONE = targets.of_device(jax.devices("cpu")[0]).everywhere


def test_its_bytes_are_those_on_all_devices() -> None:
    target = targets.of_mesh(virtual_devices(4))
    rows: Any = NamedSharding(target.mesh, PartitionSpec("0"))  # type: ignore[arg-type]
    made = PlannedBuffer((8, 3), np.float32, rows)
    assert (made.nbytes, repr(made)) == (96, "<planned [8, 3] float32>")


def test_elements_are_refused_unless_they_are_known() -> None:
    unknown, known = PlannedBuffer((2,), np.int32, ONE), of_host(np.array([3, 4], np.int32), ONE)
    for ask in (unknown.block_until_ready, lambda: np.asarray(unknown), lambda: unknown.addressable_shards):
        with pytest.raises(
            NotComputed, match=r"^The elements of a tensor of size \[2\] and dtype int32 were asked for"
        ):
            ask()
    assert not unknown.is_ready() and known.is_ready() and known.block_until_ready() is known
    assert np.asarray(known).tolist() == [3, 4]
    assert not hasattr(unknown, "__cuda_array_interface__")  # who asks what kind of thing it is gets no error


def test_many_elements_are_not_kept() -> None:
    assert of_host(np.zeros(1 << 20, np.int8), ONE).is_ready()
    assert not of_host(np.zeros((1 << 20) + 1, np.int8), ONE).is_ready()


def test_those_that_somebody_holds_are_known() -> None:
    gc.collect()  # what earlier tests left would go meanwhile
    before = len(abstract_devices.living)
    made = PlannedBuffer((1,), np.int8, ONE)
    assert made in abstract_devices.living and len(abstract_devices.living) == before + 1
    del made
    gc.collect()
    assert len(abstract_devices.living) == before


def test_blocks_nest_and_leave_everything_as_it_was() -> None:
    own, two = platform.local_devices(), virtual_devices(2)
    with pytest.raises(KeyError), in_place_of_buffers(two):
        assert abstract_devices.active and platform.local_devices() == two == platform.all_devices()
        with suspended() as device:
            assert not abstract_devices.active and device is own[0]
            with suspended():
                assert not abstract_devices.active
            assert not abstract_devices.active and platform.local_devices() == own
        assert abstract_devices.active and platform.local_devices() == two
        raise KeyError
    assert not abstract_devices.active and platform.local_devices() == own
    with suspended():
        pass
    assert not abstract_devices.active


def test_devices_are_made_once_and_at_least_one() -> None:
    assert virtual_devices(3) is virtual_devices(3) and len(virtual_devices(3)) == 3
    with pytest.raises(ValueError, match=r"^plan\(\): expected at least one device, not 0$"):
        virtual_devices(0)
