"""A program is found under the lock, compiled and waited for without it, and run under it."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.compile import program_cache
from torch_xla._engine.compile.program import Program
from torch_xla._engine.metrics.events import Cause
from torch_xla._engine.runtime import launch_throttle
from torch_xla._engine.step import in_flight, unlocked_compile
from torch_xla._engine.step.pending_graph import graph_of
from torch_xla._engine.step.schedule import clear_schedules
from torch_xla._engine.step.unlocked_compile import Attempt, NotCompiled, NotItsTurn, under_lock, wait_for_turn
from torch_xla._engine.tensor.device import LOCK, device_at


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch_xla.sync()
    clear_schedules()
    yield


def program(number: int) -> Program:
    """One that is not compiled."""
    found = graph_of([torch.ones(number + 2).to("xla").exp()])
    return program_cache.program_of(found.graph, (), found.device.target_of(found.graph))


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
    prepare = unlocked_compile.prepare_program

    def prepared(*args: object) -> bool:
        free.append(is_free())
        return prepare(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(unlocked_compile, "prepare_program", prepared)

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
    compile_it: Callable[[], Program | None] = refused(wanted).do_it
    assert compile_it() is wanted and compile_it() is None


@pytest.fixture
def last(monkeypatch: pytest.MonkeyPatch) -> "deque[Any]":
    """Return the last runs; none of them is waited for at first."""
    made: deque[Any] = deque([launch_throttle.NEVER] * launch_throttle.MOST, maxlen=launch_throttle.MOST)
    monkeypatch.setattr(launch_throttle, "last", made)
    return made


def limited(program: Program) -> Program:
    """As one over several devices, which waits for the first of the last runs."""
    program.compile_for(())
    program.is_limited = True
    return program


def run_that_notes(seen: list[bool]) -> SimpleNamespace:
    """A run that has ended once it was waited for; notes whether others got the lock meanwhile."""
    return SimpleNamespace(block_until_ready=lambda: seen.append(is_free()))


@pytest.mark.parametrize("how", ["sync", "read"])
def test_who_waits_for_its_turn_leaves_the_lock_to_others(last: "deque[Any]", how: str) -> None:
    x = torch.ones(5).to("xla")

    def step() -> torch.Tensor:
        y = x.exp() + 1
        if how == "sync":
            torch_xla.sync()
        return y.cpu()

    expected = step()
    schedule = device_at(0).last_schedule
    assert schedule is not None and schedule.program is not None
    schedule.program.is_limited = True
    free: list[bool] = []
    last[0] = run_that_notes(free)
    assert torch.equal(step(), expected)
    assert free == [True] and last[0] is launch_throttle.NEVER


@pytest.mark.parametrize("how", ["sync", "read", "replay"])
def test_who_waits_for_memory_leaves_the_lock_to_others(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(1 << 20).to("xla")

    def step() -> torch.Tensor:
        return x.exp() + 1

    called = torch_xla.compile(step, replay=True) if how == "replay" else step
    for _ in range(3):
        kept = called()
        if how == "sync":
            torch_xla.sync()
        expected = kept.cpu()
    free: list[bool] = []
    end = SimpleNamespace(
        is_deleted=lambda: False, is_ready=lambda: False, block_until_ready=lambda: free.append(is_free())
    )
    in_flight.by_target[device_at(0).target].running.appendleft((64 << 20, [end]))
    monkeypatch.setattr(in_flight, "until_ready", lambda ends: [each.block_until_ready() for each in ends])
    kept = called()
    if how == "sync":
        torch_xla.sync()
    elif how == "read":
        torch_xla._XLAC._xla_sync_multi([kept], [])
    monkeypatch.undo()
    assert free == [True]
    assert torch.equal(kept.cpu(), expected)


def test_what_is_recorded_while_a_sync_waits_for_its_turn_is_computed(last: "deque[Any]") -> None:
    x, made = torch.ones(6).to("xla"), []
    y = x.exp().sin()
    wanted = graph_of([y])
    limited(program_cache.program_of(wanted.graph, (), wanted.device.target_of(wanted.graph)))

    def record_beside() -> None:
        thread = threading.Thread(target=lambda: made.append(x + 41))  # which takes the lock
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    last[0] = SimpleNamespace(block_until_ready=record_beside)
    torch_xla.sync()
    assert torch.allclose(y.cpu(), torch.ones(6).exp().sin()) and made[0].tolist() == [42.0] * 6


def test_a_turn_that_others_take_each_time_is_waited_for_under_the_lock_in_the_end(last: "deque[Any]") -> None:
    wanted, attempts, free = limited(program(0)), [], []
    last[0] = run_that_notes(free)

    def work(attempt: Attempt) -> None:
        attempts.append(attempt)
        if not attempt.compiles:
            last[0] = run_that_notes(free)
            raise NotItsTurn(wanted, wanted)

    under_lock(work)
    assert [each.compiles for each in attempts] == [False, False, True] and free == [True, True]
    assert attempts[1].compiled is wanted and attempts[1].seconds > 0


def test_who_holds_the_lock_waits_for_no_turn_before_it_runs(last: "deque[Any]") -> None:
    free: list[bool] = []
    last[0] = run_that_notes(free)
    with LOCK:
        wait_for_turn(limited(program(0)))
    wait_for_turn(None)
    assert not free
    wait_for_turn(limited(program(0)))
    assert free == [True]
