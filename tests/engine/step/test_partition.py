"""Threads that record on one tape: each runs what it recorded, as if it were alone, and leaves theirs to others."""

import gc
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla
from torch_xla._engine.ir.graph import decode
from torch_xla._engine.metrics import counter
from torch_xla._engine.step import partition
from torch_xla._engine.tensor.device import device_at
from torch_xla.debug import metrics


class Worker:
    """A thread that does what it is given, and lives on."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (work := self._asked.get()) is not None:
            try:
                self._answers.put((True, work()))
            except Exception as error:
                self._answers.put((False, error))
            del work

    def do(self, work: Callable[[], Any]) -> Any:
        """Return the result of `work()` in this thread, or raise its error."""
        self._asked.put(work)
        succeeded, answer = self._answers.get(timeout=100)
        if not succeeded:
            raise answer
        return answer

    def end(self) -> None:
        self._asked.put(None)
        self._thread.join()


@pytest.fixture
def worker() -> Iterator[Worker]:
    """One that has evaluated something."""
    made = Worker()
    made.do(lambda: torch.ones(2, device="xla").sum().item())
    torch_xla.sync()
    yield made
    made.end()


def recorded() -> list[str]:
    return [str(each.plan.op).removeprefix("aten.").split(".")[0] for each in decode(device_at(0).tape.code)[1]]


def test_a_step_runs_what_its_own_thread_recorded(worker: Worker) -> None:
    x = torch.arange(3.0).to("xla")
    mine = x * 2
    theirs = worker.do(lambda: x + 1)
    mine = mine * 3
    torch_xla.sync()
    assert recorded() == ["add"] and device_at(0).tape.turns[-1][1] != threading.get_ident()
    worker.do(torch_xla.sync)
    assert recorded() == []
    assert mine.tolist() == [0, 6, 12] and theirs.tolist() == [1, 2, 3]


def test_what_a_step_needs_of_another_threads_runs_with_it(worker: Worker) -> None:
    x = torch.arange(3.0).to("xla")
    theirs = worker.do(lambda: x + 1)
    other = worker.do(lambda: x - 1)
    mine = theirs * 2
    torch_xla.sync()
    assert recorded() == ["sub"]
    assert (mine.tolist(), theirs.tolist(), other.tolist()) == ([2, 4, 6], [1, 2, 3], [-1, 0, 1])


def test_a_read_leaves_what_it_does_not_need(worker: Worker) -> None:
    x = torch.arange(3.0).to("xla")
    theirs = worker.do(lambda: [x + 1])
    mine = x * 2
    assert mine.tolist() == [0, 2, 4] and recorded() == ["add"]
    worker.do(lambda: theirs.append(theirs[0].exp()))
    assert worker.do(theirs[1].tolist) == (torch.arange(3.0) + 1).exp().tolist() and recorded() == []


def test_threads_that_have_ended_or_never_evaluated_leave_theirs_to_all(worker: Worker) -> None:
    x = torch.arange(3.0).to("xla")
    made = [worker.do(lambda: x + 1)]
    silent = Worker()
    made.append(silent.do(lambda: x + 2))
    worker.end()
    torch_xla.sync()
    assert recorded() == []
    assert [each.tolist() for each in made] == [[1, 2, 3], [2, 3, 4]]
    silent.end()


def test_all_is_run_where_all_is_asked_for(worker: Worker) -> None:
    x = torch.arange(3.0).to("xla")
    theirs = worker.do(lambda: x + 1)
    torch.accelerator.synchronize()
    assert recorded() == [] and theirs.tolist() == [1, 2, 3]


def test_effects_of_two_threads_keep_their_order(worker: Worker, capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.zeros(1, device="xla")
    torch_xla.sync()

    def claim(message: str, holds: bool) -> None:
        torch._assert_async(x[0] == (0 if holds else 1), message)

    worker.do(lambda: claim("theirs", True))
    claim("mine", False)
    with pytest.raises(RuntimeError, match="mine"):
        torch_xla.sync(wait=True)
    assert recorded() == []


def compiled() -> int:
    return counter("UncachedCompile").value


class Step:
    """A training step in parts, through views and in place."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.weight = torch.randn(4, 6).to(device).requires_grad_()
        self.batch = torch.randn(3, 4).to(device)
        self.parts = [self.forward, self.activation, self.backward, self.update]

    def forward(self) -> None:
        self.hidden = self.batch @ self.weight
        self.left, self.right = self.hidden[:, :3], self.hidden[:, 3:]

    def activation(self) -> None:
        self.loss = (self.left.tanh() * self.right).sum() + self.right.square().mean()

    def backward(self) -> None:
        self.loss.backward()

    @torch.no_grad()
    def update(self) -> None:
        self.weight[:, 0] -= 0.2 * self.weight.grad[:, 0]
        self.weight -= 0.1 * self.weight.grad
        self.weight.grad = None


class Small:
    """The work of the other thread, in parts; the last part reads."""

    def __init__(self) -> None:
        self.parts: list[Callable[[], Any]] = [self.begin, self.middle, self.read]

    def begin(self) -> None:
        self.x = torch.ones(2, 3, device="xla")

    def middle(self) -> None:
        self.y = self.x[:, 1:] + 1
        self.x[0] = 5

    def read(self) -> None:
        assert (self.x.sum() + self.y.sum()).item() == 26


# How many parts of the other thread's come before each of the step's.
between = st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=4)


@settings(deadline=None, max_examples=25)
@given(between)
def test_a_step_is_the_same_program_whatever_others_do_meanwhile(plan: list[list[int]]) -> None:
    other, ours, cpu, small = Worker(), Step("xla"), Step("cpu"), Small()
    for part in small.parts:
        other.do(part)
    for step in (ours, cpu):
        for _ in range(2):
            for part in step.parts:
                part()
            torch_xla.sync()
    before, turn = compiled(), 0
    for counts in plan:
        for part, same_part, count in zip(ours.parts, cpu.parts, counts, strict=True):
            for _ in range(count):
                other.do(small.parts[turn % 3])
                turn += 1
            part()
            same_part()
        torch_xla.sync()
    assert compiled() == before
    other.end()
    torch.testing.assert_close(ours.weight.detach().cpu(), cpu.weight.detach())
    torch_xla.sync()


def change(values: list[torch.Tensor], first: int, second: int, what: int) -> None:
    """One of several things that a thread may do."""
    match what:
        case 0:
            values[first] = values[first] + values[second]
        case 1:
            values[first][0, 1:].add_(values[second][1, :2])
        case 2:
            values[first] = values[second].clone()
        case 3:
            torch_xla.sync()
        case _:
            values[first].sum().item()


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 5), st.integers(0, 4)), max_size=25))
def test_threads_compute_what_one_would(calls: list[tuple[int, int, int, int]]) -> None:
    """Each call has a worker, its operands, its result, and an operation."""
    workers = [Worker() for _ in range(3)]
    ours = [torch.full((2, 3), float(index)).to("xla") for index in range(6)]
    cpu = [torch.full((2, 3), float(index)) for index in range(6)]
    for who, *call in calls:
        for values in (ours, cpu):
            workers[who].do(partial(change, values, *call))
    assert [each.tolist() for each in ours] == [each.tolist() for each in cpu]
    for each in workers:
        each.end()


def test_threads_that_have_ended_are_forgotten() -> None:
    before = len(partition._evaluators)
    for _ in range(10):
        one = Worker()
        one.do(lambda: torch.ones(2, device="xla").sum().item())
        one.end()
        del one
    gc.collect()
    assert len(partition._evaluators) <= before + 1


def test_no_values_are_counted_twice(worker: Worker) -> None:
    x = torch.arange(3.0).to("xla")
    torch_xla.sync()
    made = metrics.counter_value("CreateXlaTensor")
    mine, theirs = x * 2, worker.do(lambda: (x + 1).exp())
    torch_xla.sync()
    worker.do(torch_xla.sync)
    assert metrics.counter_value("CreateXlaTensor") == made + 3
    assert mine.tolist() == [0, 2, 4] and theirs.tolist() == (torch.arange(3.0) + 1).exp().tolist()
