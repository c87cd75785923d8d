"""`torch.accelerator` where `xla` is not in use: another accelerator answers for itself, or there is none."""

from typing import Any

import pytest
import torch

from torch_xla._engine.dispatch.register import torch_accelerator


class Native:
    """Stands for `torch.cuda` of a PyTorch that is built for it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.is_available = lambda: True

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


@pytest.fixture(autouse=True)
def unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_accelerator.devices, "existing", [])
    monkeypatch.setattr(torch_accelerator.platform, "is_started", lambda: False)
    monkeypatch.setattr(torch_accelerator.platform_selection, "is_accelerated", lambda: False)
    monkeypatch.delenv("PJRT_DEVICE", raising=False)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Native:
    module = Native()
    monkeypatch.setattr(torch_accelerator, "native", lambda: "cuda")
    monkeypatch.setattr(torch, "get_device_module", lambda name: module)
    return module


def test_without_another_accelerator_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_accelerator, "native", lambda: None)
    assert torch.accelerator.current_accelerator() is None
    assert torch._C._get_accelerator() == torch.device("cpu")
    for ask in (torch.accelerator.synchronize, torch.accelerator.current_device_index, torch.accelerator.empty_cache):
        with pytest.raises(RuntimeError, match="Cannot access accelerator device when none is available"):
            ask()


def test_another_accelerator_answers_for_itself(native: Native) -> None:
    assert torch.accelerator.current_accelerator() == torch._C._get_accelerator() == torch.device("cuda")
    torch.accelerator.synchronize(0)
    torch.accelerator.current_stream(0)
    torch.accelerator.set_device_index(1)
    torch._C._accelerator_exchangeDevice(2)
    torch._C._accelerator_emptyCache()
    assert native.calls == [
        ("synchronize", 0),
        ("current_stream", 0),
        ("set_device", 1),
        ("_exchange_device", 2),
        ("empty_cache",),
    ]


def test_one_that_the_machine_lacks_is_not_where_tensors_go(native: Native) -> None:
    native.is_available = lambda: False
    assert torch.accelerator.current_accelerator() == torch.device("cuda")  # what PyTorch was built for
    assert torch._C._get_accelerator() == torch.device("cpu")


def test_hardware_that_pytorch_has_no_device_for_is_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_accelerator, "native", lambda: None)
    monkeypatch.setattr(torch_accelerator.platform_selection, "is_accelerated", lambda: True)
    assert torch.accelerator.current_accelerator() == torch.device("xla")


def test_hardware_that_pytorch_has_a_device_for_is_pytorchs(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_accelerator.platform_selection, "is_accelerated", lambda: True)
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


def test_who_names_the_platform_means_to_use_it(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CUDA")
    assert torch.accelerator.current_accelerator() == torch.device("xla")


def test_pinned_memory_and_the_hooks_are_asked_of_another_accelerator(native: Native) -> None:
    if hasattr(torch.accelerator, "empty_host_cache"):  # new in PyTorch 2.12
        torch.accelerator.empty_host_cache()
    torch._C._accelerator_hooks_set_current_device(1)
    torch._C._accelerator_hooks_get_current_device()
    assert native.calls == [("set_device", 1), ("current_device",)]


def test_the_hooks_answer_for_xla_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_accelerator, "is_ours", lambda: True)
    monkeypatch.setattr(torch_accelerator.devices, "device_count", lambda: 3)
    assert torch._C._accelerator_hooks_device_count() == 3
    assert torch._C._accelerator_hooks_get_current_device() == 0
    if hasattr(torch.accelerator, "empty_host_cache"):
        assert torch.accelerator.memory.empty_host_cache() is None
