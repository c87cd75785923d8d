"""Python collects garbage when it likes: what a finalizer records while a program is compiled is not lost."""

import gc
from collections.abc import Iterator

import pytest
import torch

import torch_xla
from torch_xla._engine.compile import program
from torch_xla._engine.private import jax as private


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """What finalizers leave; garbage is collected while a program is compiled, and at no other time."""
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


class Recording:
    """Garbage whose finalizer records one operation more."""

    def __init__(self, counter: torch.Tensor, done: list[int]) -> None:
        self.counter, self.done, self.itself = counter, done, self

    def __del__(self) -> None:
        self.done.append(1)
        self.counter.add_(1)


def test_what_a_finalizer_records_in_the_recording_of_another_operation_comes_before_or_after_it() -> None:
    done: list[int] = []
    counter = torch.zeros(3).to("xla")
    x, y = torch.zeros(4).to("xla"), torch.zeros(4).to("xla")
    parts = [torch.zeros(3).to("xla") for _ in range(3)]
    before = gc.get_threshold()
    try:
        for turn in range(160):
            gc.set_threshold(10**6)
            gc.collect(0)
            Recording(counter, done)
            gc.set_threshold(gc.get_count()[0] + 1 + turn % 40, 1000, 1000)  # so many allocations later
            x = x + 1
            y = (y * 1).add_(x * 0 + 1)
            torch._foreach_add_(parts, 1)
            x[1:].add_(0)
            if turn % 10 == 0:
                gc.set_threshold(10**6)
                torch_xla.sync()
    finally:
        gc.set_threshold(*before)
    assert len(done) > 140
    assert counter.tolist() == [float(len(done))] * 3
    assert x.tolist() == [160.0] * 4 and y.tolist() == [160.0] * 4
    assert [part.tolist() for part in parts] == [[160.0] * 3] * 3
