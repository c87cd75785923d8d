"""What has no rule runs on the CPU: correct, counted and named once."""

import warnings
from collections.abc import Iterator

import pytest
import torch

import torch_xla.debug.metrics as met
from torch_xla._engine.dispatch import fallback
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


def test_a_fallback_is_correct_counted_and_warned_about_once_with_the_users_line() -> None:
    x = torch.tensor([3.0, 1.0, 1.0], device="xla")
    with pytest.warns(UserWarning, match=r"aten::_unique2 has no XLA lowering .*test_fallback.py:\d+ in test_a_fall"):
        first = torch.unique(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = torch.unique(x)
    assert first.device.type == "xla"
    assert first.tolist() == second.tolist() == [1, 3]
    assert counters.value_of("aten::_unique2") == 2
    assert met.executed_fallback_ops() == ["aten::_unique2"]


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
    assert torch.unique(x).tolist() == [0, 1, 2]


@ALLOWED
def test_sizes_that_depend_on_values_come_from_the_host() -> None:
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]], device="xla", requires_grad=True)
    assert x.nonzero().tolist() == [[0, 1], [1, 0]]
    chosen = x[x > 1]
    assert chosen.tolist() == [2, 3]
    chosen.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[0, 1], [1, 0]]


def test_errors_of_a_fallback_are_those_of_the_cpu() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(IndexError) as theirs:
            torch.ones(3).unique(dim=4)
        with pytest.raises(IndexError) as ours:
            torch.ones(3, device="xla").unique(dim=4)
    assert str(ours.value) == str(theirs.value)
