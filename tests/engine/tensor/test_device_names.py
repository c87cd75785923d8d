"""Devices by the names people give them."""

from typing import Any

import pytest
import torch

from torch_xla._engine.tensor import device_names


@pytest.mark.parametrize(
    "name", [None, 0, "xla", "xla:0", "CPU:0", torch.device("xla"), torch.device("xla:0")], ids=str
)
def test_each_name_means_the_device(name: Any) -> None:
    assert device_names.index_of(name) == 0 and device_names.device_named(name).index == 0


@pytest.mark.parametrize("name", ["cpu", "CPU:7", "banana", "cuda:0", torch.device("cpu")], ids=str)
def test_another_device_is_refused_with_the_names_that_there_are(name: Any) -> None:
    with pytest.raises(RuntimeError, match=f"^{name} is not an xla device: expected .* 'xla:0', or one of 'CPU:0'"):
        device_names.index_of(name)


def test_ordinals_count_from_0() -> None:
    with pytest.raises(RuntimeError, match="^xla:-1 does not exist: ordinals count from 0$"):
        device_names.device_named(-1)
    with pytest.raises(RuntimeError, match="^xla:99 does not exist"):
        device_names.device_named(99)


def test_the_hardware_is_named() -> None:
    everything = device_names.real_names()
    assert everything[0] == "CPU:0" and device_names.real_names([0, "xla", "CPU:0"]) == ["CPU:0"] * 3
    assert device_names.real_names([]) == []


def test_where_pytorch_takes_an_ordinal_nothing_and_a_negative_number_mean_the_current() -> None:
    current = device_names.index_of()
    assert {device_names.index_or_current(name) for name in (None, -1, "xla", torch.device("xla"))} == {current}
    assert [device_names.index_or_current(name) for name in (3, "xla:3", torch.device("xla:3"))] == [3, 3, 3]


@pytest.mark.parametrize("other", ["cpu", "cuda:0", torch.device("meta"), True, 1.5, [0]])
def test_where_pytorch_takes_an_ordinal_what_is_no_xla_device_is_refused(other: object) -> None:
    with pytest.raises(ValueError, match="^expected an xla device or its number, such as 'xla', 'xla:0' or 0, got "):
        device_names.index_or_current(other)


def test_a_device_that_does_not_exist_is_refused_once_a_client_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.zeros(1, device="xla").cpu()
    with pytest.raises(RuntimeError, match="^xla:99 does not exist"):
        device_names.index_in_use(99)
    monkeypatch.setattr(device_names.platform, "is_started", lambda: False)
    assert device_names.index_in_use(99) == 99
