"""Several tensors at once: in one program, in one batch, and each memory once."""

import threading
from typing import Any

import pytest
import torch

import torch_xla
from tests.support.pending import prolonged
from torch_xla._engine.errors import CompilationRefused
from torch_xla._engine.metrics import counters, samples
from torch_xla._engine.step.pending_graph import is_pending
from torch_xla._engine.tensor.storage import value_of
from torch_xla._engine.transfer import batch_reads


def runs() -> int:
    found = samples.data_of("ExecuteTime")
    return 0 if found is None else found.count


def test_they_are_computed_in_one_program_and_little_else_is() -> None:
    torch_xla.sync()
    x = torch.arange(3.0).to("xla")
    a, b, other = x + 1, x.exp(), prolonged(x.sin())
    before = counters.value_of("UncachedCompile") or 0  # from other tests
    batch_reads.compute([a, b])
    assert not is_pending(a) and not is_pending(b) and is_pending(other)
    assert counters.value_of("UncachedCompile") == before + 1


def test_compiling_runs_nothing_and_reading_compiles_no_more() -> None:
    x = torch.arange(31.0).to("xla")  # as below
    y = x * 3.5
    batch_reads.compile_only([y])
    assert is_pending(y) and counters.value_of("UncachedCompile") == 1 and samples.data_of("ExecuteTime") is None
    batch_reads.compile_only([y])
    assert y.tolist()[:3] == [0, 3.5, 7] and counters.value_of("UncachedCompile") == 1


def test_compiling_ahead_is_refused_where_compiling_is() -> None:
    x = torch.arange(29.0).to("xla")  # a program for any factor may have been compiled for a size that others use
    y = x * 4.5
    with torch_xla.debug.no_recompile(), pytest.raises(CompilationRefused):
        batch_reads.compile_only([y])
    assert not counters.value_of("UncachedCompile") and y[1].item() == 4.5


def test_a_callback_is_called_in_another_thread_with_the_value_there() -> None:
    x = torch.arange(3.0, device="xla") + 1
    called, seen = threading.Event(), []

    def callback() -> None:
        seen.append((threading.current_thread(), value_of(x).buffer.is_ready()))
        called.set()

    batch_reads.call_when_ready(x, callback)
    assert called.wait(60)
    ((thread, is_ready),) = seen
    assert thread is not threading.current_thread() and is_ready


def test_a_callback_is_called_whatever_is_written_to_the_tensor_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Any] = []

    class Late(threading.Thread):
        def start(self) -> None:
            late.append(self)

    x, called = torch.arange(3.0, device="xla") + 1, threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", Late)
        batch_reads.call_when_ready(x, called.set)
    x.add_(1)
    torch_xla.sync(wait=True)
    threading.Thread.start(late[0])
    assert called.wait(60)


def test_what_is_one_memory_is_one_copy_and_each_keeps_what_it_is() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j], device="xla")
    parameter, wants = torch.nn.Parameter(x), x.detach().requires_grad_()
    copies = batch_reads.to_host([x, x.detach(), x.conj(), parameter, wants, x.view(torch.float64)])
    assert [each.device.type for each in copies] == ["cpu"] * 6
    assert copies[0] is copies[1] and copies[2].tolist() == [1 - 2j, 3 + 1j]
    assert isinstance(copies[3], torch.nn.Parameter) and copies[3].requires_grad
    assert copies[4].requires_grad and not copies[0].requires_grad
    assert copies[3].data_ptr() == copies[4].data_ptr() == copies[0].data_ptr()
    assert copies[5].tolist() == torch.tensor([1 + 2j, 3 - 1j]).view(torch.float64).tolist()


def test_numbers_of_memory_and_addresses() -> None:
    x = torch.arange(6.0).view(2, 3).to("xla")
    same, other = batch_reads.handles([x, x[1:]]), batch_reads.handles([x + 1])
    assert same[0] == same[1] != other[0]
    assert batch_reads.address(x[1:]) - batch_reads.address(x) == 12


def test_data_of_the_host_is_moved_and_its_containers_stay() -> None:
    data = {"x": torch.ones(2), "p": torch.nn.Parameter(torch.ones(1)), "n": [3]}
    made = batch_reads.moved(data, torch.device("xla"))
    assert made["x"].device.type == "xla" and isinstance(made["p"], torch.nn.Parameter) and made["n"] is data["n"]
    assert made["p"].requires_grad and data["x"].device.type == "cpu"
