"""Ending a step: what runs, in which order, and what it costs when there is nothing to do."""

import threading
from collections.abc import Iterator

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from tests.support import costs
from tests.support.pending import prolonged
from torch_xla._engine.step import end_of_step


@pytest.fixture(autouse=True)
def no_closure_is_left() -> Iterator[None]:
    torch_xla.sync()
    yield
    torch_xla.sync()
    end_of_step.wait_for_closures()


def ones(*size: int) -> torch.Tensor:
    return torch.ones(*size, device="xla")


def is_pending(tensor: torch.Tensor) -> bool:
    return torch_xla._XLAC._check_tensor_need_materialization([tensor])[0]


def test_a_step_runs_what_was_recorded() -> None:
    x = ones(2) + 1
    assert is_pending(x)
    torch_xla.sync(wait=True)
    assert not is_pending(x)
    assert x.tolist() == [2, 2]


def test_every_spelling_ends_a_step_and_counts_it() -> None:
    met.clear_all()
    torch_xla.sync()
    torch_xla.sync(True, False)
    xm.mark_step()
    xm.mark_step(wait=True, reset_scope=False)
    with torch_xla.step():
        pass
    assert met.counter_value("MarkStep") == 6


def test_a_step_with_nothing_to_do_costs_a_few_calls() -> None:
    torch_xla.sync()
    assert costs.in_calls(xm.mark_step, 2000) < 20  # 4 on an idle machine


def test_the_block_of_a_step_is_a_program_of_its_own() -> None:
    before = ones(2) * 3
    with torch_xla.step():
        assert not is_pending(before)
        inside = ones(2) * 5
    assert not is_pending(inside)

    @torch_xla.step()
    def decorated() -> torch.Tensor:
        return ones(2) * 7

    assert not is_pending(decorated())


def test_a_block_that_raises_leaves_its_work_recorded() -> None:
    with pytest.raises(KeyError), torch_xla.step():
        x = ones(2) * 11
        raise KeyError
    assert is_pending(x)
    assert x.tolist() == [11, 11]


def test_closures_run_in_order_after_the_program_with_their_tensors() -> None:
    seen: list[tuple[str, bool, float]] = []

    def report(name: str, loss: torch.Tensor) -> None:
        seen.append((name, is_pending(loss), loss.item()))

    xm.add_step_closure(report, args=("first", ones(3).sum()))
    xm.add_step_closure(report, args=("second", ones(4).sum()))
    assert not seen
    met.clear_all()
    torch_xla.sync()
    assert seen == [("first", False, 3), ("second", False, 4)]
    assert met.metric_data("ExecuteTime")[0] == 1  # type: ignore[index]
    torch_xla.sync()
    assert len(seen) == 2


def test_what_a_closure_raises_the_step_raises_and_the_rest_runs_at_the_next() -> None:
    ran: list[str] = []
    xm.add_step_closure(lambda: 1 // 0)
    xm.add_step_closure(ran.append, args=("rest",))
    x = ones(2) * 2
    with pytest.raises(ZeroDivisionError):
        torch_xla.sync()
    assert not is_pending(x) and not ran
    torch_xla.sync()
    assert ran == ["rest"]


def test_a_closure_may_queue_one_for_the_next_step_and_end_a_step() -> None:
    ran: list[str] = []

    def again() -> None:
        ran.append("again")
        if len(ran) < 3:
            xm.add_step_closure(again)
        if len(ran) == 2:
            torch_xla.sync()

    xm.add_step_closure(again)
    torch_xla.sync()
    assert len(ran) == 1
    torch_xla.sync()
    assert len(ran) == 3


def test_a_closure_in_the_background_sees_the_values_of_its_step() -> None:
    go, done = threading.Event(), threading.Event()
    seen: list[float] = []

    def report(total: torch.Tensor) -> None:
        go.wait(60)
        seen.append(total.item())
        done.set()

    total = ones(()).clone()
    for _ in range(2):
        total.add_(1)
        torch_xla.sync()
    xm.add_step_closure(report, args=(total,), run_async=True)
    torch_xla.sync()
    total.add_(100)
    met.clear_all()
    go.set()
    assert done.wait(60)
    assert seen == [3]
    assert is_pending(total)  # looking did not cut this step's graph
    assert total.item() == 103


def test_closures_in_the_background_cost_no_compilation() -> None:
    total = torch.zeros((), device="xla")
    for i in range(6):
        total.add_(1)
        xm.add_step_closure(torch.Tensor.item, args=(total,), run_async=True)
        torch_xla.sync()
        if i == 2:
            met.clear_all()
    end_of_step.wait_for_closures()
    assert met.metric_data("CompileTime") is None
    assert total.item() == 6


def test_what_a_closure_in_the_background_raises_a_later_step_raises_once() -> None:
    xm.add_step_closure(lambda: 1 // 0, run_async=True)
    with pytest.raises(ZeroDivisionError):
        for _ in range(6000):
            torch_xla.sync()
            threading.Event().wait(0.01)
    torch_xla.sync()


def test_waiting_leaves_what_is_recorded_alone() -> None:
    x = ones(2) * 13
    xm.wait_device_ops()
    xm.wait_device_ops(["xla:0"])
    assert is_pending(x)
    with pytest.raises(RuntimeError, match="cpu is not an xla device"):
        xm.wait_device_ops(["cpu"])


def test_several_tensors_are_computed_in_one_program() -> None:
    x, y = ones(2) * 17, ones(3) * 19
    met.clear_all()
    xm.unlazy([x, y, ones(2)])
    assert not is_pending(x) and not is_pending(y)
    assert met.metric_data("ExecuteTime")[0] == 1  # type: ignore[index]


def test_one_tensor_is_computed_without_the_rest_of_the_step() -> None:
    x, y = ones(2) * 23, prolonged(ones(3) * 29)
    xm.unlazy([x])
    assert not is_pending(x) and is_pending(y)


def test_an_optimizer_step_can_end_the_step_and_returns_the_loss() -> None:
    weight = torch.ones(2, device="xla", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight * 2).sum()
        loss.backward()
        return loss

    loss = xm.optimizer_step(optimizer, barrier=True, optimizer_args={"closure": closure})
    assert not is_pending(weight)
    assert loss.item() == 4
    assert weight.tolist() == [0, 0]
    assert [grad.tolist() for grad in xm._fetch_gradients(optimizer)] == [[2, 2]]


def test_gradients_that_are_fetched_are_the_parameters_own() -> None:
    used, unused = (torch.ones(2, device="xla", requires_grad=True) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [used]}, {"params": [unused]}], lr=1.0)
    used.sum().backward()
    (grad,) = xm._fetch_gradients(optimizer)
    grad.mul_(3)
    assert used.grad is not None and used.grad.tolist() == [3, 3]


def test_callers_find_an_optimizer_step_that_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced: list[object] = []
    monkeypatch.setattr(xm, "reduce_gradients", lambda optimizer, **_: reduced.append(optimizer))
    optimizer = torch.optim.SGD([torch.ones(1, device="xla", requires_grad=True)], lr=1.0)
    xm.optimizer_step(optimizer)
    assert reduced == [optimizer]
