"""The attributes of a device: its name, its position in a mesh of chips, its slice."""

from types import SimpleNamespace
from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.runtime import device_attributes
from torch_xla._engine.runtime.device_attributes import attributes_of, device_with_name, slices_of


def test_a_device_of_the_host_has_a_name_and_no_place() -> None:
    device = jax.devices("cpu")[0]
    assert attributes_of(device) == {"name": "CPU:0"}
    assert device_with_name("CPU:0") is device
    with pytest.raises(ValueError, match="^no device is called 'TPU:3'; there are CPU:0"):
        device_with_name("TPU:3")


def test_a_chip_has_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_attributes, "real_name", lambda device: f"TPU:{device.id}")
    chip: Any = SimpleNamespace(id=5, coords=(1, 0, 2), core_on_chip=0, num_cores=None)
    assert attributes_of(chip) == {"name": "TPU:5", "coords": [1, 0, 2], "core_on_chip": 0}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2) | st.none()), min_size=1, max_size=8))
def test_devices_are_grouped_by_their_slices_or_by_their_processes(found: list[tuple[int, int | None]]) -> None:
    devices: Any = [SimpleNamespace(process_index=process, slice_index=part) for process, part in found]
    groups = slices_of(devices)
    assert sorted(place for group in groups for place in group) == list(range(len(devices)))
    tells = all(part is not None for _, part in found)
    keys = [{found[place][1] if tells else found[place][0] for place in group} for group in groups]
    assert all(len(key) == 1 for key in keys) and [min(key) for key in keys] == sorted({min(key) for key in keys})
