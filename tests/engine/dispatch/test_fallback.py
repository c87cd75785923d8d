"""What has no rule runs on the CPU: correct, counted and named once."""

import warnings
from collections.abc import Iterator

import pytest
import torch

import torch_xla.debug.metrics as met
from torch_xla._engine.dispatch import cpu_fallbacks, fallback
from torch_xla._engine.dispatch.kernels import recorder
from torch_xla._engine.lowering import registry
from torch_xla._engine.metrics import counters

ALLOWED = pytest.mark.filterwarnings("ignore:.*has no XLA lowering here")


@pytest.fixture(autouse=True)
def nothing_was_warned_about(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fallback, "_warned", set())
    yield


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
    line = rf"{NAME} has no XLA lowering .*test_fallback.py:\d+ in _histogram.*: {cpu_fallbacks.ON_THE_CPU[NAME]}"
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
