"""Targets are compared by `is`, and describe the devices of a program."""

import jax
import pytest

from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.tensor.device import device_at


def test_equal_targets_are_one_object() -> None:
    device = jax.local_devices()[0]
    assert targets.of_device(device) is targets.of_device(device) is device_at(0).target
    assert targets.of_replicas((device,)) is targets.of_replicas((device,))
    assert targets.of_mesh((device,)) is targets.of_mesh((device,))
    assert len({targets.of_device(device), targets.of_replicas((device,)), targets.of_mesh((device,))}) == 3


def test_a_target_tells_where_a_program_runs() -> None:
    device = jax.local_devices()[0]
    alone, replicas, spread = targets.of_device(device), targets.of_replicas((device,)), targets.of_mesh((device,))
    assert alone.devices == alone.local == (device,) and alone.mesh is None and alone.processes == (0,)
    assert (alone.platform, alone.kind, alone.is_host) == (device.platform, device.device_kind, True)
    assert alone.name == f"{device.platform}:{device.id}" and repr(alone) == f"<target {alone.name}>"
    assert replicas.axis == targets.REPLICAS and replicas.replicas == 1 and not replicas.is_spread
    assert spread.is_spread and spread.axis is None and spread.device is device


def test_a_target_does_not_change() -> None:
    with pytest.raises(AttributeError):
        device_at(0).target.platform = "other"  # type: ignore[misc]
