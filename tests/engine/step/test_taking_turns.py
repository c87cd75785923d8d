"""A call that writes, while another thread writes to the same memory: both writes count, as kernels on one stream."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torch_xla
from torch_xla._engine.compiled.dynamo.graph_operation import GraphOperation
from torch_xla._engine.dispatch import cpu_fallback, recording_kernel
from torch_xla._engine.dispatch.op_schema import operator_of
from torch_xla._engine.tensor.device import LOCK
from torch_xla.experimental import eager_mode_context


@contextmanager
def overtaken_once(write: Callable[[], Any]) -> Iterator[list[str]]:
    """Another thread calls `write` between the first call's look at its operands and its own write."""
    came: list[str] = []

    def look(plan: Any, call: Any) -> None:
        if not came:
            came.append(str(plan.op))
            in_a_thread(write)

    recording_kernel.look_at_calls(look)
    try:
        yield came
    finally:
        recording_kernel.look_at_calls(None)


def in_a_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def zeros(*size: int) -> Tensor:
    made = torch.zeros(*size).to("xla")
    torch_xla.sync()
    return made


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "whole": lambda s: s.add_(1),
    "a number": lambda s: s.sub_(-1),
    "views": lambda s: [part.add_(1) for part in (s[:2], s[2:])],
    "foreach": lambda s: torch._foreach_add_([s], 1.0),
    "foreach of views": lambda s: torch._foreach_add_([s[:2], s[2:]], 1.0),
    "out": lambda s: torch.add(s, 1, out=s),
    "out of a view": lambda s: [torch.add(part, 1, out=part) for part in (s[:, 0], s[:, 1:])],
    "index_add_": lambda s: s.index_add_(0, torch.arange(4).to("xla"), torch.ones(4, 3).to("xla")),
    "addcmul_": lambda s: s.addcmul_(torch.ones(3).to("xla"), torch.ones(3).to("xla")),
}


@pytest.mark.parametrize("is_eager", [False, True])
@pytest.mark.parametrize("other", ["whole", "views"])
@pytest.mark.parametrize("name", CALLS)
def test_both_writes_count(name: str, other: str, is_eager: bool) -> None:
    s = zeros(4, 3)
    for _ in range(3):  # in eager mode the third needs no tape
        with eager_mode_context(is_eager):
            with overtaken_once(lambda: CALLS[other](s)) as came:
                CALLS[name](s)
            assert came
    torch_xla.sync()
    assert s.flatten().tolist() == [6.0] * 12


def test_several_tensors_are_written_together_or_read_again() -> None:
    s, t = zeros(4), zeros(3)
    with overtaken_once(lambda: t.add_(1)):
        torch._foreach_add_([s, t], 1.0)
    assert s.tolist() == [1.0] * 4 and t.tolist() == [2.0] * 3


def test_running_statistics_are_those_of_both_batches() -> None:
    ours, theirs = torch.nn.BatchNorm1d(3).to("xla"), torch.nn.BatchNorm1d(3)
    x = torch.arange(12.0).view(4, 3)
    on_device = x.to("xla")
    with overtaken_once(lambda: ours(on_device)):
        ours(on_device)
    theirs(x), theirs(x)
    assert torch.allclose(ours.running_mean.cpu(), theirs.running_mean)
    assert torch.allclose(ours.running_var.cpu(), theirs.running_var)


@pytest.mark.parametrize("is_eager", [False, True])
def test_graphs_of_openxla_read_again(is_eager: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    s, t = zeros(4), zeros(3)
    record, came = GraphOperation.record, []

    def late(self: GraphOperation, arguments: list[Any]) -> Any:
        made = record(self, arguments)
        if not came:
            came.append(True)
            in_a_thread(lambda: t.add_(1))
        return made

    def function(x: Tensor) -> Tensor:
        s.add_(x)
        t.add_(1)
        return s.sum() + t.sum()

    compiled: Any = torch.compile(function, backend="openxla")
    with eager_mode_context(is_eager):
        compiled(torch.ones(4).to("xla"))
        monkeypatch.setattr(GraphOperation, "record", late)
        result = compiled(torch.ones(4).to("xla"))
    assert came and s.tolist() == [2.0] * 4 and t.tolist() == [3.0] * 3 and result.item() == 17.0


@pytest.mark.filterwarnings("ignore:.*has no XLA lowering here")
def test_what_runs_on_the_cpu_reads_again() -> None:
    s, one, came = zeros(4), torch.ones(4).to("xla"), []

    class Late(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if op is torch.ops.aten.add_.Tensor and args[0].device.type == "cpu" and not came:
                came.append(True)
                in_a_thread(lambda: s.add_(10))
            return op(*args, **(kwargs or {}))

    with Late():
        cpu_fallback.run(operator_of("aten::add_.Tensor"), (s, one), {})
    assert came and s.tolist() == [11.0] * 4


def test_a_finalizer_that_writes_in_the_middle_counts() -> None:
    s, came = zeros(4), []

    def look(plan: Any, call: Any) -> None:
        if not came:
            came.append(True)
            s.add_(10)  # in this thread, as garbage collected here would

    recording_kernel.look_at_calls(look)
    try:
        s.add_(1)
    finally:
        recording_kernel.look_at_calls(None)
    assert came and s.tolist() == [11.0] * 4


def test_a_replay_runs_what_another_thread_has_recorded() -> None:
    s = zeros(4)
    replayed = torch_xla.compile(lambda: s.add_(1), replay=True)
    for _ in range(5):
        replayed()
    assert replayed.is_replayed
    in_a_thread(lambda: s.add_(10))  # and ends no step
    replayed()
    assert replayed.why_recorded == "" and s.tolist() == [16.0] * 4


def test_the_memory_is_written_under_the_lock() -> None:
    s, written = zeros(4), threading.Event()

    def write() -> None:
        s.add_(1)
        written.set()

    thread = threading.Thread(target=write)
    with LOCK:
        thread.start()
        assert not written.wait(0.2)
    thread.join(60)
    assert s.tolist() == [1.0] * 4


@pytest.mark.filterwarnings("ignore:.*is recorded this time")
def test_a_call_beside_which_another_thread_records_teaches_nothing() -> None:
    s, t = zeros(4), zeros(4)

    def function() -> None:
        s.add_(1)
        in_a_thread(lambda: t.add_(1))

    replayed = torch_xla.compile(function, replay=True)
    for _ in range(6):
        replayed()
    assert not replayed.is_replayed
    assert s.tolist() == t.tolist() == [6.0] * 4
