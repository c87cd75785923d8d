"""Eager mode: every operation runs when it is called, right and cached; functions under `compile` do not."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dis import opname
from types import FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from tests.support import costs
from torch_xla._engine.compiled import eager as modes
from torch_xla._engine.dispatch import recording_kernel
from torch_xla.experimental import eager as documented
from torch_xla.experimental import eager_mode, eager_mode_context, is_eager_mode


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    torch_xla.sync()
    eager_mode(True)
    yield
    eager_mode(False)
    torch_xla.sync()


def is_pending(tensor: torch.Tensor) -> bool:
    return torch_xla._XLAC._check_tensor_need_materialization([tensor])[0]


def executed() -> int:
    data = met.metric_data("EagerOpExecuteTime")
    return data[0] if data is not None else 0


def test_an_operation_runs_when_it_is_called() -> None:
    x = torch.arange(3.0).to("xla")
    y = x + 1
    assert not is_pending(y)
    assert not is_pending(y.add_(2))
    assert y.tolist() == [3.0, 4.0, 5.0]


def test_a_second_call_compiles_nothing() -> None:
    x = torch.ones(2, 3).to("xla")
    for _ in range(2):
        met.clear_all()
        ((x + 1) @ x.t()).relu_()
    assert met.counter_value("UncachedCompile") is None
    assert met.metric_data("EagerOpCompileTime") is None
    assert executed() == 3  # the transposed operand is part of the product


def test_random_numbers_for_new_memory_wait_for_their_reader_as_constants_do() -> None:
    torch.manual_seed(3)
    drawn, more = torch.rand(4, device="xla"), torch.randn(4, device="xla")
    assert is_pending(drawn) and is_pending(more)
    assert not is_pending(drawn + more)
    drawn.uniform_()
    assert not is_pending(drawn)  # it was written to before
    torch.manual_seed(3)
    with eager_mode_context(False):
        again = torch.rand(4, device="xla"), torch.randn(4, device="xla"), torch.rand(4, device="xla")
    assert torch.equal(more.cpu(), again[1].cpu())
    assert torch.equal(drawn.cpu(), again[2].cpu())


def test_a_program_is_counted_as_one_of_eager_mode_or_as_one_of_a_graph() -> None:
    def counted() -> list[int]:
        names = "EagerOpCompileTime", "EagerOpExecuteTime", "CompileTime", "ExecuteTime"
        found = [met.metric_data(name) for name in names]
        return [0 if data is None else data[0] for data in found]

    x = torch.ones(7, 5).to("xla")
    met.clear_all()
    y = x.sinh()
    assert counted() == [1, 1, 0, 0]
    x.sinh()
    assert counted() == [1, 2, 0, 0]
    step = torch_xla.compile(lambda x: (x.cosh() + 1).tanh(), replay=False)
    step(y)
    assert counted() == [1, 2, 1, 1]
    step(y)
    y.mul_(2)
    assert counted() == [2, 3, 1, 2]
    with eager_mode_context(False):
        (x.cos() * x.sin()).tolist()
    assert counted() == [2, 3, 2, 3]


def test_a_write_through_a_view_is_part_of_the_operation() -> None:
    x = torch.zeros(3, 4).to("xla")
    x[1].add_(1)
    met.clear_all()
    x[1].add_(1)
    assert executed() == 1 and not is_pending(x)
    assert x.tolist() == [[0.0] * 4, [2.0] * 4, [0.0] * 4]


def test_constants_wait_for_the_operation_that_reads_them() -> None:
    x = torch.ones(3).to("xla")
    for number in (2.0, 5.0):  # a number becomes an argument when it changes
        x * torch.tensor(number)
    met.clear_all()
    y = x * torch.tensor(3.0)
    assert executed() == 1 and y.tolist() == [3.0] * 3
    assert torch.full((2,), 4.0, device="xla").tolist() == [4.0, 4.0]


def test_training_is_that_of_the_cpu() -> None:
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Flatten(), nn.Linear(48, 4))
    ours = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Flatten(), nn.Linear(48, 4))
    ours.load_state_dict(theirs.state_dict())
    ours.to("xla")
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (ours, theirs)]
    for _ in range(4):
        x, y = torch.randn(5, 1, 6, 6), torch.randint(4, (5,))
        losses = []
        for model, optimizer, device in zip((ours, theirs), optimizers, ("xla", "cpu"), strict=True):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert not any(is_pending(parameter) for parameter in ours.parameters())
    for (name, one), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-3, atol=1e-4, msg=name)


def test_random_numbers_are_those_of_the_recorded_program() -> None:
    torch.manual_seed(4)
    here = F.dropout(torch.ones(50, device="xla"), 0.5) + torch.rand(50, device="xla")
    with eager_mode_context(False):
        torch.manual_seed(4)
        there = F.dropout(torch.ones(50, device="xla"), 0.5) + torch.rand(50, device="xla")
        assert torch.equal(here.cpu(), there.cpu())


def test_a_compiled_function_is_recorded_as_a_whole() -> None:
    seen = []

    @torch_xla.compile
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        seen.append((is_pending(y), is_eager_mode()))
        return y * 2

    x = torch.ones(2).to("xla")
    met.clear_all()
    result = function(x)
    assert seen == [(True, False)] and is_eager_mode()
    assert not is_pending(result) and executed() == 0
    assert not is_pending(result + 1)


def test_eager_mode_comes_back_after_an_error_in_a_compiled_function() -> None:
    @torch_xla.compile
    def function() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        function()
    assert is_eager_mode()


def test_a_replayed_function_under_eager_mode() -> None:
    total = torch.zeros(3).to("xla")
    step = torch_xla.compile(lambda x: total.add_(x), replay=True)
    for index in range(6):
        step(torch.ones(3).to("xla"))
        assert total.tolist() == [index + 1.0] * 3
    assert met.counter_value("ReplayedStep") == 3


def test_the_context_turns_it_on_and_off() -> None:
    with eager_mode_context(False):
        assert not is_eager_mode()
        assert is_pending(torch.ones(2).to("xla") + 1)
        with eager_mode_context(True):
            assert is_eager_mode()
        assert not is_eager_mode()
    assert is_eager_mode()


class Interrupting:
    """Raises `KeyboardInterrupt` at the place with a certain number, counted from 0, where Python may raise one.

    That is where a function of these files begins or goes on, and behind a call.
    """

    FILES = (recording_kernel.__file__, modes.__file__, documented.__file__, contextlib.__file__)

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, kind: str, _: object) -> Any:
        if frame.f_code.co_filename not in self.FILES:
            return None
        frame.f_trace_opcodes = True
        is_behind_a_call = True  # or at the beginning

        def look(frame: FrameType, kind: str, _: object) -> Any:
            nonlocal is_behind_a_call
            if kind in ("call", "opcode"):
                if is_behind_a_call:
                    self._raise_at_last()
                is_behind_a_call = opname[frame.f_code.co_code[frame.f_lasti]].startswith("CALL")
            return look

        return look(frame, kind, None)

    def _raise_at_last(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("before", [True, False])
def test_the_context_leaves_no_mode_on_wherever_it_is_interrupted(before: bool) -> None:
    x = torch.arange(3.0).to("xla")
    eager_mode(before)
    places = 0
    while True:
        tracer = sys.gettrace()
        sys.settrace(Interrupting(places))
        try:
            with eager_mode_context(not before):
                pass
        except KeyboardInterrupt:
            places += 1
        else:
            break
        finally:
            sys.settrace(tracer)
        assert is_eager_mode() == before, places
        assert is_pending(x + 1) == (not before)
    assert places > 15


def test_what_was_recorded_before_is_started() -> None:
    eager_mode(False)
    x = torch.ones(2).to("xla") + 1
    assert is_pending(x)
    eager_mode(True)
    assert not is_pending(x)


def test_an_operation_costs_little() -> None:
    x, y = torch.randn(8, 8).to("xla"), torch.randn(8, 8).to("xla")
    x + y
    assert costs.in_calls(lambda: x + y) < 4000  # 1,000 on an idle machine, which is 35 µs


@pytest.mark.slow
def test_the_variable_turns_it_on_at_the_import() -> None:
    program = "import torch_xla; print(torch_xla.experimental.is_eager_mode())"
    environment = {**os.environ, "XLA_USE_EAGER_DEBUG_MODE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "True"


def test_transforms_of_functions_run_too() -> None:
    weight = torch.randn(3, 3).to("xla")
    batch = torch.randn(5, 3).to("xla")
    result = torch.func.vmap(torch.func.grad(lambda x: (x @ weight).sin().sum()))(batch)
    expected = torch.func.vmap(torch.func.grad(lambda x: (x @ weight.cpu()).sin().sum()))(batch.cpu())
    torch.testing.assert_close(result.cpu(), expected)
