"""Several threads: they may record, read, differentiate and sync at the same time."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_xla
from torch_xla._engine.compile import jax_function
from torch_xla._engine.tensor.device import device_at
from torch_xla.interop import to_jax


def together(work: Callable[[int], Any], count: int = 4) -> list[Any]:
    """The results of `work(0)`, `work(1)`, … run at the same time."""
    start = threading.Barrier(count)

    def run(index: int) -> Any:
        start.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_threads_record_and_read_at_the_same_time() -> None:
    def work(index: int) -> float:
        x = torch.zeros(3, device="xla")
        for step in range(20):
            x = x + index * 0.5
            if step % 5 == index:
                x.sum().item()
        return float(x.sum().item())

    assert together(work) == [30.0 * index for index in range(4)]


def test_threads_sync_while_others_record() -> None:
    def work(index: int) -> float:
        x = torch.ones(4, device="xla") * index
        for step in range(25):
            y = x * 2
            y[1:].add_(step)
            x = y - x - torch.cat([torch.zeros(1, device="xla"), torch.full((3,), float(step), device="xla")])
            if step % 3 == index % 3:
                torch_xla.sync()
        return float(x.sum().item())

    assert together(work) == [4.0 * index for index in range(4)]


def test_threads_write_to_tensors_of_their_own_over_one_base() -> None:
    base = torch.zeros(4, 100, device="xla")

    rows = base.clone().unbind()

    def work(index: int) -> list[float]:
        row = rows[index].clone()
        for _ in range(20):
            row.add_(1)
            row[index::4].mul_(1)
        return list(row.tolist())

    assert together(work) == [[20.0] * 100] * 4


def test_backward_passes_of_several_threads() -> None:
    def work(index: int) -> list[float]:
        x = torch.arange(3.0, device="xla").requires_grad_()
        for _ in range(5):
            x.grad = None
            (x ** (index + 1)).sum().backward()
        assert x.grad is not None
        return list(x.grad.tolist())

    expected = [[(i + 1) * float(v) ** i for v in range(3)] for i in range(4)]
    assert together(work) == expected


def test_several_threads_accumulate_into_one_gradient() -> None:
    x = torch.arange(3.0, device="xla").requires_grad_()
    together(lambda _: (x * 2).sum().backward())
    assert x.grad is not None
    assert x.grad.tolist() == [8, 8, 8]


def test_threads_train_models_of_their_own() -> None:
    def work(index: int) -> tuple[float, float]:
        model = nn.Linear(3, 1)
        with torch.no_grad():
            model.weight.fill_(0.1 * (index + 1))
            model.bias.zero_()
        model.to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3, device="xla")).pow(2).mean()
            loss.backward()
            optimizer.step()
            if index % 2:
                torch_xla.sync()
            losses.append(loss.detach())
        return losses[0].item(), losses[-1].item()

    for index, (first, last) in enumerate(together(work)):
        assert first == torch.tensor(0.3 * (index + 1)).pow(2).item() or abs(first - (0.3 * (index + 1)) ** 2) < 1e-5
        assert last < first


def test_a_tensor_made_in_one_thread_is_read_in_another() -> None:
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(torch.arange(4.0, device="xla").exp()))
    thread.start()
    thread.join()
    assert torch.allclose(made[0].cpu(), torch.arange(4.0).exp())


def test_uploads_from_a_thread_reach_the_recording_one() -> None:
    batches: list[torch.Tensor] = []

    def load() -> None:
        for index in range(20):
            batches.append(torch.full((5,), float(index)).to("xla"))

    thread = threading.Thread(target=load)
    thread.start()
    total = torch.zeros(5, device="xla")
    for index in range(20):
        while len(batches) <= index:
            pass
        total += batches[index]
        if index % 7 == 0:
            torch_xla.sync()
    thread.join()
    assert total.tolist() == [190.0] * 5


def test_the_tape_holds_nothing_after_threads_have_gone() -> None:
    together(lambda index: torch.ones(3, device="xla").mul(index).sum().item())
    torch_xla.sync()
    assert device_at(0).tape.code == []


def test_others_record_while_a_program_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    lower, waited = jax_function.lowered, []

    def while_another_records(*arguments: Any) -> Any:
        # As a finalizer may, which runs in the middle of a compilation: it has another thread do something, and waits.
        if not waited:
            thread = threading.Thread(target=lambda: made.append((x + 2).mul_(3)))
            thread.start()
            thread.join(timeout=60)
            waited.append(thread.is_alive())
        return lower(*arguments)

    x = torch.arange(5.0).to("xla")
    made = [x.sin().cumsum(0)]
    with monkeypatch.context() as patch:
        patch.setattr(jax_function, "lowered", while_another_records)
        torch_xla.sync()
    assert waited == [False]
    torch.testing.assert_close(made[0].cpu(), torch.arange(5.0).sin().cumsum(0))
    assert made[1].tolist() == [6, 9, 12, 15, 18]


@pytest.mark.parametrize("way", ["eager", "in place in eager mode", "to_jax", "cached graph"])
def test_others_go_on_while_a_program_is_compiled(
    way: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    lower, waited, found = jax_function.lowered, list[bool](), list[Any]()
    mine = torch.arange(5.0).to("xla")
    size = 11 + 2 * len(request.node.callspec.id)  # a program of its own

    def other() -> None:
        found.append((mine * 2).add_(1).tolist())

    def while_another_runs(*arguments: Any) -> Any:
        if not waited:
            waited.append(True)
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(timeout=60)
            waited[0] = thread.is_alive()
        return lower(*arguments)

    x = torch.arange(float(size)).to("xla")
    expected = torch.arange(float(size)).sin() + 1
    if way == "cached graph":
        y = x.sin() + 1
        name = torch_xla._XLAC._get_graph_hash([y])
        _, inputs = torch_xla._XLAC._get_tensors_xla_device_data_node([y])
        del y
    elif "eager" in way:
        torch_xla.experimental.eager_mode(True)
        request.addfinalizer(lambda: torch_xla.experimental.eager_mode(False))
    with monkeypatch.context() as patch:
        patch.setattr(jax_function, "lowered", while_another_runs)
        if way == "in place in eager mode":
            result = x.sin_().add_(1)
        elif way == "cached graph":
            (result,) = torch_xla._XLAC._run_cached_graph(name, inputs)
        else:
            result = x.sin() + 1
            if way == "to_jax":
                result = torch.from_numpy(np.asarray(to_jax(result)).copy())
    assert waited == [False] and found == [[1, 3, 5, 7, 9]]
    torch.testing.assert_close(result.cpu(), expected)


def test_two_threads_that_need_one_program_compile_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lower, calls, both = jax_function.lowered, [], threading.Barrier(2)

    def slowly(*arguments: Any) -> Any:
        calls.append(threading.get_ident())
        time.sleep(0.3)
        return lower(*arguments)

    x = torch.arange(7.0).to("xla")
    y = x.cos().cumprod(0) - 4
    monkeypatch.setattr(jax_function, "lowered", slowly)

    def read() -> list[float]:
        both.wait()
        return y.tolist()

    with ThreadPoolExecutor(2) as pool:
        found = [each.result() for each in [pool.submit(read) for _ in range(2)]]
    torch.testing.assert_close(found[0], (torch.arange(7.0).cos().cumprod(0) - 4).tolist())
    assert found[0] == found[1] and len(calls) == 1
