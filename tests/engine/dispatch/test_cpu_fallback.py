"""Operators without a rule run on PyTorch's kernels: with correct results, counted and reported once.

They run on the CPU by way of the host, or like the kernels of a GPU, on memory that PyTorch and the device exchange.
"""

import warnings
from collections.abc import Iterator

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.dispatch import cpu_fallback, cpu_fallback_list
from torch_xla._engine.dispatch.recording_kernel import recorder
from torch_xla._engine.lowering.machinery import registry
from torch_xla._engine.metrics import counters
from torch_xla._engine.transfer import cuda_zero_copy

ALLOWED = pytest.mark.filterwarnings("ignore:.*has no XLA lowering here")


@pytest.fixture(autouse=True)
def nothing_was_warned_about(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cpu_fallback, "_warned", set())
    yield


@pytest.fixture(autouse=True, params=["by the host", "beside"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With `beside` the CPU is taken for the GPU that the device is."""
    if request.param == "beside":
        monkeypatch.setattr(cuda_zero_copy, "gpu_of", lambda _: torch.device("cpu"))
    return str(request.param)


@pytest.fixture
def without_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernels made in the test find no rule for sine, neither as a function nor in place."""
    rules = {op: rule for op, rule in registry._rules.items() if op is not torch.ops.aten.sin.default}
    monkeypatch.setattr(registry, "_rules", rules)
    yield


def _histogram(x: torch.Tensor) -> torch.Tensor:
    """By an operator that stays on the CPU."""
    return torch.histogramdd(x[:, None], (torch.tensor([0.0, 2.0, 4.0], device=x.device),)).hist


NAME = "aten::_histogramdd_from_bin_tensors"


def test_a_fallback_is_correct_counted_and_warned_about_once_with_the_users_line() -> None:
    x = torch.tensor([3.0, 1.0, 1.0], device="xla")
    line = (
        rf"{NAME} has no XLA lowering .*test_cpu_fallback.py:\d+ in _histogram.*: {cpu_fallback_list.ON_THE_CPU[NAME]}"
    )
    with pytest.warns(UserWarning, match=line):
        first = _histogram(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = _histogram(x)
    assert first.device.type == "xla"
    assert first.tolist() == second.tolist() == [2, 1]
    assert counters.value_of(NAME) == 2
    assert met.executed_fallback_ops() == [NAME]


def test_no_fallback_is_counted_for_what_has_a_rule() -> None:
    x = torch.ones(3, device="xla")
    (x.exp() @ x + x.softmax(0)).sum().tolist()
    assert met.executed_fallback_ops() == []


@ALLOWED
@pytest.mark.usefixtures("without_rules")
def test_a_function_falls_back() -> None:
    x = torch.arange(6.0, device="xla").view(2, 3).t()
    y = recorder("aten::sin")(x)
    assert y.device == x.device
    torch.testing.assert_close(y.cpu(), torch.arange(6.0).view(2, 3).t().sin())


@ALLOWED
@pytest.mark.usefixtures("without_rules")
def test_a_write_through_a_view_falls_back() -> None:
    x = torch.arange(6.0, device="xla").view(2, 3)
    view = x.t()[1]
    assert recorder("aten::sin_")(view) is view
    expected = torch.arange(6.0).view(2, 3)
    expected.t()[1].sin_()
    torch.testing.assert_close(x.cpu(), expected)


@ALLOWED
def test_a_fallback_sees_writes_that_are_still_recorded() -> None:
    x = torch.zeros(3, device="xla")
    x[1:].add_(torch.tensor([2.0, 1.0], device="xla"))
    assert _histogram(x).tolist() == [2, 1]


@ALLOWED
def test_what_a_fallback_writes_may_be_resized() -> None:
    def quantized(device: str) -> list[torch.Tensor]:
        x = torch.arange(12.0).reshape(3, 4).to(device)
        on = torch.ones(1, dtype=torch.int64, device=device)
        state = [torch.tensor([], device=device) for _ in range(2)]
        state += [torch.ones(1, device=device), torch.zeros(1, dtype=torch.int32, device=device)]
        fake = torch.fused_moving_avg_obs_fake_quant(x, on, on, *state, 0.01, -128, 127, 0, True, True)
        return [fake, *state]

    for ours, theirs in zip(quantized("xla"), quantized("cpu"), strict=True):
        assert ours.shape == theirs.shape and ours.device.type == "xla"
        torch.testing.assert_close(ours.cpu(), theirs)


def test_errors_of_a_fallback_are_those_of_the_cpu() -> None:
    def weigh(device: str) -> None:
        edges, weight = torch.tensor([0.0, 2.0], device=device), torch.ones(3, device=device)
        torch.histogramdd(torch.ones(2, 1, device=device), (edges,), weight=weight)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError) as theirs:
            weigh("cpu")
        with pytest.raises(RuntimeError) as ours:
            weigh("xla")
    assert str(ours.value) == str(theirs.value)


@ALLOWED
@pytest.mark.usefixtures("without_rules")
def test_results_keep_their_strides_and_nothing_is_copied_to_the_host_beside(way: str) -> None:
    x = torch.arange(24.0, device="xla").view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    torch_xla.sync()
    y = recorder("aten::sin")(x)
    assert y.stride() == x.stride()
    assert (met.metric_data("TransferFromDeviceTime") is None) == (way == "beside")
    torch.testing.assert_close(y.cpu(), torch.arange(24.0).view(1, 2, 3, 4).sin())


@ALLOWED
@pytest.mark.usefixtures("without_rules")
@pytest.mark.parametrize("refused", ["a kernel that is missing", "a dtype", "no elements"])
def test_what_the_gpu_has_no_kernel_for_runs_on_the_cpu(
    refused: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def fails(tensor: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("no kernel")

    monkeypatch.setattr(cuda_zero_copy, "gpu_of", lambda _: torch.device("cuda", 3))
    monkeypatch.setattr(cuda_zero_copy, "copy_of", fails if refused == "a kernel that is missing" else None)
    x = torch.ones(0 if refused == "no elements" else 2, dtype=torch.float32, device="xla")
    if refused == "a dtype":
        monkeypatch.setattr(cuda_zero_copy, "EXCHANGED", frozenset((torch.float64,)))
    torch.testing.assert_close(recorder("aten::sin")(x).cpu(), x.cpu().sin())
    (told,) = [str(each.message) for each in recwarn if "no XLA lowering" in str(each.message)]
    assert "runs on the CPU" in told and "copied to the host" in told


def test_the_warning_names_the_gpu() -> None:
    with pytest.warns(UserWarning, match=r"runs on PyTorch's kernel for cuda:3 .* copied on the GPU each time"):
        cpu_fallback.warn("aten::sin", torch.device("cuda", 3))


# An operator that writes to an argument that its schema does not declare as written.
_UNDECLARED = torch.library.Library("undeclared", "DEF")
_UNDECLARED.define("note(Tensor x, Tensor state) -> Tensor")
_UNDECLARED.impl("note", lambda x, state: state.add_(x).sum(), "CPU")


@ALLOWED
def test_a_write_that_an_extension_does_not_declare_arrives() -> None:
    x, state = torch.ones(3, device="xla"), torch.zeros(3, device="xla")
    note = recorder("undeclared::note")
    for _ in range(2):
        total = note(x, state)
    assert (state.tolist(), x.tolist(), total.item()) == ([2.0] * 3, [1.0] * 3, 6.0)
