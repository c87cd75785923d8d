"""The events that listeners receive, and that a guard can refuse."""

import gc
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.metrics import events, user_lines
from torch_xla._engine.metrics.events import Cause, Direction


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    gc.collect()
    torch_xla.sync(wait=True)
    found: list[Any] = []
    events.listen(found.append, frames=3)
    yield found
    events.unlisten(found.append)


def of_kind(heard: list[Any], kind: type) -> list[Any]:
    return [event for event in heard if isinstance(event, kind)]


def here() -> int:
    return sys._getframe(1).f_lineno


def test_a_step_is_compiled_executed_and_told_once_each(heard: list[Any]) -> None:
    x = torch.full((3, 5), 2.0, device="xla")
    y = x.exp() * 3.5
    line = here() + 1
    torch_xla.sync()
    [compilation] = of_kind(heard, events.Compilation)
    [execution] = of_kind(heard, events.Execution)
    [evaluation] = of_kind(heard, events.Evaluation)
    step = of_kind(heard, events.StepEnd)[-1]  # the block begins with a sync, too
    for event in (compilation, execution, evaluation, step):
        assert event.frames[0][0] == __file__ and event.frames[0][1] == line
        assert event.start > 0 and event.seconds > 0
    assert compilation.cause is execution.cause is evaluation.cause is Cause.SYNC
    assert [operation.plan.op.name() for operation in compilation.program.graph.operations] == [
        "aten::full",
        "aten::exp",
        "aten::mul.Tensor",
    ]
    assert [found[1] for found in compilation.lines] == [line - 3, line - 2, line - 2]
    assert compilation.numbers == (2.0, 3.5)
    assert compilation.sizes.outputs >= 2 * y.numel() * 4
    assert evaluation.operations == 3
    assert compilation.start < execution.start


def test_a_read_is_an_evaluation_and_a_transfer(heard: list[Any]) -> None:
    y = torch.ones(7, device="xla") + 1
    line = here() + 1
    assert y.sum().item() == 14
    [evaluation] = of_kind(heard, events.Evaluation)
    [transfer] = of_kind(heard, events.Transfer)
    assert evaluation.cause is Cause.READ
    assert (transfer.direction, transfer.bytes, transfer.forced) == (Direction.FROM_DEVICE, 4, True)
    assert evaluation.frames[0][1] == transfer.frames[0][1] == line
    assert not of_kind(heard, events.StepEnd)
    torch_xla.sync(wait=True)
    heard.clear()
    y.cpu()
    [transfer] = of_kind(heard, events.Transfer)
    assert not transfer.forced and not of_kind(heard, events.Evaluation)


def test_uploads_waits_and_fallbacks_are_told(heard: list[Any]) -> None:
    x = torch.ones(3, 4).to("xla")
    [transfer] = of_kind(heard, events.Transfer)
    assert (transfer.direction, transfer.bytes) == (Direction.TO_DEVICE, 48)
    torch_xla.sync(wait=True)
    assert of_kind(heard, events.Wait)
    heard.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        line = here() + 1
        torch.histogramdd(x, bins=(x[0],) * 4)
    [fallback] = of_kind(heard, events.Fallback)
    assert fallback.operator == "aten::_histogramdd_from_bin_tensors" and fallback.frames[0][:2] == (__file__, line)
    transfer, *_ = [event for event in of_kind(heard, events.Transfer) if event.direction is Direction.FROM_DEVICE]
    assert fallback.start < transfer.start and transfer.seconds < fallback.seconds


def test_a_guard_refuses_before_anything_has_happened() -> None:
    class Refused(Exception):
        pass

    def refuse(event: Any) -> None:
        if isinstance(event, events.Compilation):
            assert event.seconds == 0 and event.sizes is None
            raise Refused

    x = torch.full((11,), 2.0, device="xla")
    y = x.sin().cos().sin()
    events.guard(refuse)
    try:
        with pytest.raises(Refused):
            torch_xla.sync()
        with pytest.raises(Refused):
            y.tolist()
    finally:
        events.unguard(refuse)
    torch.testing.assert_close(y.cpu(), torch.full((11,), 2.0).sin().cos().sin())


def test_a_listener_that_fails_is_told_once_and_the_step_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Any) -> None:
        calls.append(event)
        raise ValueError("no")

    calls: list[Any] = []
    events.listen(fail)
    try:
        with caplog.at_level(logging.ERROR):
            for _ in range(2):
                assert (torch.ones(3, device="xla") + 4).sum().item() == 15
        assert fail in {listener for listener, _ in events._logged}
    finally:
        events.unlisten(fail)
    assert fail not in {listener for listener, _ in events._logged}
    assert met.counter_value("ListenerFailed") == len(calls) > 2
    assert len(caplog.records) == len({type(event) for event in calls})
    assert "more of its failures are only counted" in caplog.text
    met.clear_counters()


def test_the_line_is_the_users_through_pythons_own_files(heard: list[Any]) -> None:
    line = here() + 1
    with torch_xla.step():
        torch.ones(3, device="xla").mul(2)
        kept = torch.ones(3, device="xla") * 3
    step = of_kind(heard, events.StepEnd)[-1]  # the block begins with a sync, too
    assert kept.tolist() == [3, 3, 3]
    assert step.frames[0][0] == __file__ and line <= step.frames[0][1] <= line + 2


def test_the_standard_library_is_not_the_users() -> None:
    assert not user_lines.belongs_to_user(logging.__file__)
    assert not user_lines.belongs_to_user(torch.__file__)
    assert not user_lines.belongs_to_user("<frozen importlib._bootstrap>")
    assert user_lines.belongs_to_user("<stdin>")
    assert user_lines.belongs_to_user(pytest.__file__)
