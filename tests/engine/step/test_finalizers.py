"""Python collects garbage when it likes: what a finalizer records while a program is compiled is not lost."""

import gc
import sys
from _thread import LockType
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.compat.names import jax_source_lines as private
from torch_xla._engine.compile import program
from torch_xla._engine.compiled.replay import replay
from torch_xla._engine.dispatch import recording_kernel


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """Yield the results of finalizers; garbage is collected only while a program is compiled."""
    left: list[torch.Tensor] = []
    compile_for = program.Program.compile_for

    def compile_and_collect(*arguments: object) -> object:
        gc.collect()
        return compile_for(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(program.Program, "compile_for", compile_and_collect)
    gc.collect()
    gc.disable()
    yield left
    gc.enable()


class Late:
    """Goes away when garbage is collected, and then does one thing more with its tensor."""

    def __init__(self, tensor: torch.Tensor, left: list[torch.Tensor], syncs: bool) -> None:
        self.tensor, self.left, self.syncs, self.itself = tensor, left, syncs, self

    def __del__(self) -> None:
        self.left.append(self.tensor + 1)
        if self.syncs:
            torch_xla.sync()


@pytest.mark.parametrize("syncs", [False, True], ids=["records", "syncs"])
@pytest.mark.parametrize("reads", [False, True], ids=["sync", "read"])
def test_what_a_finalizer_records_in_a_compilation_is_kept(
    collected: list[torch.Tensor], reads: bool, syncs: bool
) -> None:
    size = 5 + 2 * reads + syncs  # each a program of its own
    x = torch.arange(float(size)).to("xla")
    y = x * 2
    z = y - 3
    Late(y, collected, syncs)
    if reads:
        assert z.tolist() == [2.0 * n - 3 for n in range(size)]
    else:
        torch_xla.sync()
    (late,) = collected
    assert late.tolist() == [2.0 * n + 1 for n in range(size)]
    assert y.tolist() == [2.0 * n for n in range(size)] and z.tolist() == [2.0 * n - 3 for n in range(size)]


def test_no_garbage_is_collected_in_a_thread_that_a_compilation_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    submit = private.ThreadPoolExecutor.submit
    monkeypatch.setattr(private.ThreadPoolExecutor, "submit", lambda *a: seen.append(gc.isenabled()) or submit(*a))
    assert gc.isenabled()
    private.traceback_at(("a_file_of_this_test.py", 7, "anywhere"))
    assert seen == [False] and gc.isenabled()


def with_garbage(turns: int, make: Callable[[], object]) -> Iterator[int]:
    """The number of each turn, in which what `make` leaves is collected: each time at another allocation."""
    before = gc.get_threshold()
    try:
        for turn in range(turns):
            gc.set_threshold(10**6)
            gc.collect(0)
            make()
            # the number of allocations until the next collection
            gc.set_threshold(gc.get_count()[0] + 1 + turn * 3 % 100, 1000, 1000)
            yield turn
    finally:
        gc.set_threshold(*before)
    gc.collect()


class Recording:
    """Garbage whose finalizer records one operation more, and may have everything evaluated."""

    def __init__(self, counter: torch.Tensor, done: list[int], then: Callable[[torch.Tensor], object]) -> None:
        self.counter, self.done, self.then, self.itself = counter, done, then, self

    def __del__(self) -> None:
        self.counter[1:].add_(1)
        self.then(self.counter)
        self.done.append(1)


@pytest.mark.parametrize("eager", [False, True], ids=["recorded", "eager"])
@pytest.mark.parametrize(
    "then",
    [lambda _: None, lambda _: torch_xla.sync(), lambda counter: counter[:2].tolist()],
    ids=["records", "syncs", "reads"],
)
def test_what_a_finalizer_does_in_the_recording_of_another_operation_comes_before_or_after_it(
    then: Callable[[torch.Tensor], object], eager: bool, request: pytest.FixtureRequest
) -> None:
    torch_xla.experimental.eager_mode(eager)
    request.addfinalizer(lambda: torch_xla.experimental.eager_mode(False))
    done: list[int] = []
    counter = torch.zeros(3).to("xla")
    counter[1:].add_(0)  # planned and compiled before it comes in the middle of something
    then(counter)
    x, y = torch.zeros(4).to("xla"), torch.zeros(4).to("xla")
    parts = [torch.zeros(3).to("xla") for _ in range(3)]
    turns = 40
    for turn in with_garbage(turns, lambda: Recording(counter, done, then)):
        x = x + 1
        y = (y * 1).add_(x * 0 + 1)
        torch._foreach_add_(parts, 1)
        x[1:].add_(0)
        if turn % 10 == 0:
            torch_xla.sync()
    assert len(done) == turns
    assert counter.tolist() == [0.0, *[float(len(done))] * 2]
    assert x.tolist() == [turns] * 4 and y.tolist() == [turns] * 4
    assert [part.tolist() for part in parts] == [[turns] * 3] * 3


def test_what_a_finalizer_adds_to_an_operation_that_runs_at_once_is_not_learned_with_it(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_xla.experimental.eager_mode(True)
    request.addfinalizer(lambda: torch_xla.experimental.eager_mode(False))
    x, counter = torch.arange(7.0).to("xla"), torch.zeros(2).to("xla")
    append, nested = recording_kernel.append, list[bool]()

    def append_and_collect(*arguments: Any) -> Any:
        made = append(*arguments)
        if not nested:
            nested.append(True)
            counter.add_(1)  # as a finalizer would
        return made

    monkeypatch.setattr(recording_kernel, "append", append_and_collect)
    for turn in range(3):
        assert (x * 3 + 0.5).tolist() == [3 * n + 0.5 for n in range(7)]
        assert counter.tolist() == [1, 1], turn


class Adding:
    """Garbage whose finalizer adds one to each tensor."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors, self.itself = tensors, self

    def __del__(self) -> None:
        for tensor in self.tensors:
            tensor.add_(1)


@pytest.mark.parametrize("eager", [False, True], ids=["recorded", "eager"])
def test_a_finalizer_that_writes_to_the_tensor_being_written_comes_before_or_after(
    eager: bool, request: pytest.FixtureRequest
) -> None:
    torch_xla.experimental.eager_mode(eager)
    request.addfinalizer(lambda: torch_xla.experimental.eager_mode(False))
    whole, part, left, right, mean = tensors = [torch.zeros(4).to("xla") for _ in range(5)]
    variance, batch = torch.ones(4).to("xla"), torch.ones(3, 4).to("xla")
    turns = 40
    for _ in with_garbage(turns, lambda: Adding(tensors)):
        whole.add_(1)
        part[1:3].add_(1)
        torch._foreach_add_([left, right], 1)
        torch.nn.functional.batch_norm(batch, mean, variance, training=True, momentum=0.0)
    one, both = float(turns), 2.0 * turns
    assert [each.tolist() for each in tensors] == [[both] * 4, [one, both, both, one], *[[both] * 4] * 2, [one] * 4]


def test_a_finalizer_that_writes_to_what_a_replay_writes_comes_before_or_after(monkeypatch: pytest.MonkeyPatch) -> None:
    fit, before = replay.Replay._fit, gc.get_threshold()

    def fit_and_collect_soon(*arguments: Any) -> bool:
        gc.set_threshold(1, 1000, 1000)
        return fit(*arguments)

    whole = torch.zeros(5).to("xla")
    replayed = torch_xla.compile(lambda: whole.add_(1).clone(), replay=True)
    for _ in range(6):
        replayed()
    assert replayed.is_replayed
    monkeypatch.setattr(replay.Replay, "_fit", fit_and_collect_soon)
    try:
        gc.set_threshold(10**6)
        gc.collect(0)
        Adding([whole])
        replayed()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert whole.tolist() == [8.0] * 5


def test_no_lock_of_the_package_is_one_that_its_own_thread_waits_for() -> None:
    """A thread that holds a lock may collect garbage, whose finalizers may need the lock."""
    held = [
        f"{name}.{attribute}"
        for name, module in list(sys.modules.items())
        if name.startswith("torch_xla")
        for attribute, value in list(vars(module).items())
        if isinstance(value, LockType)
    ]
    assert not held
