"""`torch.accelerator` where `xla` is not in use: another accelerator answers for itself, or there is none."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_xla._engine.dispatch.register import torch_accelerator


class Native:
    """Stands for `torch.cuda` of a PyTorch that is built for it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.is_available = lambda: True
        self.memory = self

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


def test_to_choose_a_device_is_to_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_accelerator, "native", lambda: None)
    assert not torch.accelerator.is_available()
    torch.accelerator.set_device_index(0)
    assert torch.accelerator.current_accelerator() == torch.device("xla")
    assert torch.accelerator.current_device_index() == 0


def test_another_accelerator_answers_for_itself(native: Native) -> None:
    assert torch.accelerator.current_accelerator() == torch._C._get_accelerator() == torch.device("cuda")
    torch.accelerator.synchronize(0)
    torch.accelerator.current_stream(0)
    torch.accelerator.set_device_index(1)
    assert native.calls == [("synchronize", 0), ("current_stream", 0), ("set_device", 1)]


@pytest.mark.parametrize(
    ("function", "arguments", "call"),
    [
        ("exchangeDevice", (2,), ("_exchange_device", 2)),
        ("maybeExchangeDevice", (2,), ("_maybe_exchange_device", 2)),
        ("setStream", ("a stream",), ("set_stream", "a stream")),
        ("isAllocatorInitialized", (), ("is_initialized",)),
        ("emptyCache", (), ("empty_cache",)),
        ("getDeviceStats", (0,), ("memory_stats_as_nested_dict", 0)),
        ("getMemoryInfo", (0,), ("mem_get_info", 0)),
        ("resetPeakStats", (0,), ("reset_peak_memory_stats", 0)),
        ("resetAccumulatedStats", (0,), ("reset_accumulated_memory_stats", 0)),
        ("hooks_get_current_device", (), ("current_device",)),
        ("hooks_set_current_device", (1,), ("set_device", 1)),
        ("hooks_exchange_device", (2,), ("_exchange_device", 2)),
        ("hooks_maybe_exchange_device", (2,), ("_maybe_exchange_device", 2)),
    ],
)
def test_a_question_in_cpp_goes_to_the_other_accelerator(
    native: Native, function: str, arguments: tuple[Any, ...], call: tuple[Any, ...]
) -> None:
    getattr(torch._C, f"_accelerator_{function}")(*arguments)
    assert native.calls == [call]


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


@pytest.mark.skipif(not hasattr(torch.accelerator, "empty_host_cache"), reason="new in PyTorch 2.12")
def test_another_accelerator_that_is_not_in_the_machine_has_no_pinned_memory(native: Native) -> None:
    torch.accelerator.empty_host_cache()
    assert native.calls == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="that device is there")
def test_a_fake_tensor_of_a_device_that_is_not_there_is_made() -> None:
    with FakeTensorMode():
        assert torch.tensor([1, 2], device="cuda").device == torch.device("cuda:0")


def test_the_hooks_answer_for_xla_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_accelerator, "is_ours", lambda: True)
    monkeypatch.setattr(torch_accelerator.devices, "device_count", lambda: 3)
    assert torch._C._accelerator_hooks_device_count() == 3
    assert torch._C._accelerator_hooks_get_current_device() == 0
    if hasattr(torch.accelerator, "empty_host_cache"):
        assert torch.accelerator.memory.empty_host_cache() is None
