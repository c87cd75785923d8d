"""A program is found under the lock, compiled without it, and run under it."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_xla
from torch_xla._engine.compile import cache
from torch_xla._engine.compile.program import Program
from torch_xla._engine.metrics.events import Cause
from torch_xla._engine.record import unlocked
from torch_xla._engine.record.device import LOCK
from torch_xla._engine.record.pending import graph_of
from torch_xla._engine.record.schedule import clear_schedules
from torch_xla._engine.record.unlocked import Attempt, NotCompiled, under_lock


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch_xla.sync()
    clear_schedules()
    yield


def program(number: int) -> Program:
    """One that is not compiled."""
    found = graph_of([torch.ones(number + 2).to("xla").exp()])
    return cache.program_of(found.graph, (), found.device.target_of(found.graph))


def refused(program: Program) -> NotCompiled:
    return NotCompiled(program, (), (), Cause.SYNC, lambda: ())


def is_free() -> bool:
    """Whether another thread gets the lock."""
    found: list[bool] = []

    def take() -> None:
        found.append(LOCK.acquire(blocking=False))
        if found[0]:
            LOCK.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found[0]


def test_what_is_compiled_needs_one_attempt_which_may_not_compile() -> None:
    attempts: list[Attempt] = []

    def work(attempt: Attempt) -> None:
        attempts.append(attempt)
        assert not is_free()

    under_lock(work)
    assert attempts == [Attempt(False)] and is_free()


def test_compiling_leaves_the_lock_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, attempts, free = program(0), [], []
    prepare = unlocked.executor.prepare

    def prepared(*args: object) -> bool:
        free.append(is_free())
        return prepare(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(unlocked.executor, "prepare", prepared)

    def work(attempt: Attempt) -> None:
        attempts.append(attempt)
        if not wanted.compiled_for(()):
            raise refused(wanted)

    under_lock(work)
    assert free == [True] and [each.compiles for each in attempts] == [False, False]
    assert attempts[1].compiled is wanted and attempts[1].seconds > 0 and wanted.compiled_for(())


def test_a_program_that_becomes_another_one_each_time_has_others_wait_in_the_end() -> None:
    attempts: list[Attempt] = []

    def work(attempt: Attempt) -> None:
        attempts.append(attempt)
        if not attempt.compiles:
            raise refused(program(len(attempts)))

    under_lock(work)
    assert [each.compiles for each in attempts] == [False, False, True]


def test_who_holds_the_lock_already_compiles_under_it() -> None:
    attempts: list[Attempt] = []
    with LOCK:
        under_lock(attempts.append)
    assert attempts == [Attempt(True)]


@pytest.mark.parametrize("fails", [ValueError, KeyboardInterrupt])
def test_what_work_raises_is_raised_and_the_lock_is_free(fails: type[BaseException]) -> None:
    def work(attempt: Attempt) -> None:
        raise fails

    with pytest.raises(fails):
        under_lock(work)
    assert is_free()


def test_one_that_is_compiled_meanwhile_is_not_compiled_again() -> None:
    wanted = program(0)
    compile_it: Callable[[], Program | None] = refused(wanted).compile
    assert compile_it() is wanted and compile_it() is None
