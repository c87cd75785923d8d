"""PyTorch's loops and branches, called on our tensors outside of any graph."""

import pytest
import torch

import torch_xla
from torch_xla._engine.compiled.loops import higher_order_ops
from torch_xla.debug import metrics


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def negate(x: torch.Tensor) -> torch.Tensor:
    return -x


def choose(predicate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.higher_order.cond(predicate, double, negate, (x,))
    return found


def test_a_branch_is_recorded_as_one_operation_and_traced_once() -> None:
    metrics.clear_counters()
    x = torch.arange(3.0).to("xla")
    large = x.sum() > 2
    assert choose(large, x).tolist() == [0, 2, 4] and choose(large.logical_not(), x).tolist() == [0, -1, -2]
    traced = len(higher_order_ops._known[double])
    assert choose(x.sum() > 0, x + 1).tolist() == [2, 4, 6] and len(higher_order_ops._known[double]) == traced == 1
    assert choose(torch.tensor(True).to("xla"), torch.ones(5).to("xla")).tolist() == [2] * 5
    assert len(higher_order_ops._known[double]) == 2 and metrics.executed_fallback_ops() == []


def test_what_was_traced_leaves_with_its_function() -> None:
    before = len(higher_order_ops._known)

    def run() -> list[float]:
        def plus(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        x = torch.zeros(2).to("xla")
        found: torch.Tensor = torch.ops.higher_order.cond(x.sum() == 0, plus, negate, (x,))
        return found.tolist()

    assert run() == [1, 1]
    torch_xla.sync(wait=True)
    assert len(higher_order_ops._known) <= before + 1


def test_kinds_of_operands_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(higher_order_ops, "_MOST", 2)
    for size in range(1, 6):
        x = torch.ones(size, device="xla")
        assert choose(x.sum() > 2, x).tolist() == [-1.0 if size < 3 else 2.0] * size
        assert len(higher_order_ops._known[double]) <= 2


def test_a_branch_that_writes_to_what_it_sees_runs_on_the_host() -> None:
    def results(device: str) -> list[list[float]]:
        buffer = torch.zeros(2, 3, device=device)
        row, x, flag = buffer[1], torch.ones(3, device=device), torch.tensor(True, device=device)

        def count(x: torch.Tensor) -> torch.Tensor:
            row.add_(1)
            return x.mul_(2) + buffer.sum(0)

        with torch.no_grad():  # with gradients PyTorch refuses writes
            found = torch.cond(flag, count, negate, (x,))
        return [found.tolist(), x.tolist(), row.tolist()]

    metrics.clear_counters()
    try:
        expected = results("cpu")
    except RuntimeError as error:  # PyTorch 2.11 refuses writes in branches
        with pytest.raises(type(error)):
            results("xla")
        return
    assert results("xla") == expected == [[3.0] * 3, [2.0] * 3, [1.0] * 3]
    assert metrics.counter_value("DynamoGraphByOperator") == 1
