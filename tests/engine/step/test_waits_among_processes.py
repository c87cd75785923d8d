"""Where other processes may never answer, a thread of its own waits: a fault they declare ends the wait at once."""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from torch_xla._engine.errors import PeerError
from torch_xla._engine.processes import heartbeats
from torch_xla._engine.processes.identity import Place
from torch_xla._engine.step import waits_among_processes


class Late:
    """An array that is ready when the test says so."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.there, self.error = threading.Event(), threading.Event(), error
        self.waited_by: list[threading.Thread] = []

    def is_ready(self) -> bool:
        return self.there.is_set()

    def block_until_ready(self) -> None:
        self.waited_by.append(threading.current_thread())
        self.begun.set()
        assert self.there.wait(60)
        if self.error is not None:
            raise self.error


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> heartbeats.Watch:
    """Return the watch of a process with one other process, without connections."""
    here = heartbeats.here()
    made = heartbeats.Watch(None, Place(0, 2), [here, here], False)
    monkeypatch.setattr(heartbeats, "current", made)
    monkeypatch.setattr(waits_among_processes, "_stuck", [])
    return made


def during(late: Late, what: Any) -> None:
    def then() -> None:
        assert late.begun.wait(60)
        what()

    threading.Thread(target=then).start()


def test_a_process_that_is_alone_waits_itself() -> None:
    late = Late()
    during(late, late.there.set)
    waits_among_processes.until_ready([late])
    assert late.waited_by == [threading.current_thread()]


def test_arrays_are_waited_for_by_threads_that_are_kept(watch: heartbeats.Watch) -> None:
    waiters = set()
    for _ in range(3):
        late = Late()
        during(late, late.there.set)
        waits_among_processes.until_ready([late, jnp.ones(2)])
        assert late.is_ready() and not watch.woken
        waiters.update(late.waited_by)
    assert threading.current_thread() not in waiters and len(waiters) < 3


@pytest.mark.parametrize("is_there", [True, False], ids=["at once", "later"])
def test_what_computing_them_raised_is_raised(is_there: bool, watch: heartbeats.Watch) -> None:
    late = Late(ValueError("out of range"))
    if is_there:
        late.there.set()
    else:
        during(late, late.there.set)
    with pytest.raises(ValueError, match="^out of range$"):
        waits_among_processes.until_ready([late])


@pytest.mark.parametrize("is_there", [True, False], ids=["at once", "later"])
def test_a_collective_that_lost_another_process_is_the_fault_of_that(is_there: bool, watch: heartbeats.Watch) -> None:
    late = Late(jax.errors.JaxRuntimeError("Gloo all-reduce failed: Connection closed by peer"))
    watch._take({"text": "Process 1 of 2 is gone."})
    if is_there:
        late.there.set()
    else:
        watch.fault = ""  # what ends the wait is the error of the device, not the fault
        during(late, late.there.set)
    with pytest.raises(PeerError, match="Process 0 of 2 raises this"):
        waits_among_processes.until_ready([late])


def test_a_fault_ends_the_wait_and_what_nobody_waits_for_any_more_is_known(watch: heartbeats.Watch) -> None:
    late = Late()
    during(late, lambda: watch.cut("Process 1 of 2 is gone."))
    with pytest.raises(PeerError, match=r"^Process 1 of 2 is gone.\nProcess 0 of 2 raises this before its first prog"):
        waits_among_processes.until_ready([late])
    (stuck,) = waits_among_processes._stuck
    assert not stuck.has_ended and not watch.woken
    late.there.set()
    assert stuck.done.wait(60)
    for _ in range(6000):
        if not waits_among_processes._stuck:
            break
        threading.Event().wait(0.01)
    assert not waits_among_processes._stuck


def test_an_error_of_a_collective_is_the_fault_behind_it(watch: heartbeats.Watch) -> None:
    watch.cut("Process 1 of 2 is gone.")
    late = Late(RuntimeError("Gloo connection closed by peer"))
    late.there.set()
    assert waits_among_processes.failure_of(ValueError("division by zero")) is None
    closed = RuntimeError("Gloo: connection closed by peer")
    assert "Process 1 of 2 is gone." in str(waits_among_processes.failure_of(closed))
