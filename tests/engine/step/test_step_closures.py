"""Calls that wait for the end of a step."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from torch_xla._engine.step.step_closures import Background, StepClosures


def test_calls_are_made_in_order_and_once() -> None:
    made: list[int] = []
    closures = StepClosures()
    for i in range(3):
        closures.add(lambda i=i: made.append(i))
    closures.run()
    closures.run()
    assert made == [0, 1, 2]


def test_what_a_call_queues_belongs_to_the_next_step() -> None:
    made: list[str] = []
    closures = StepClosures()
    closures.add(lambda: closures.add(lambda: made.append("later")))
    closures.run()
    assert made == [] and len(closures) == 1
    closures.run()
    assert made == ["later"]


def test_those_behind_a_call_that_raises_stay_queued_in_front_of_new_ones() -> None:
    made: list[str] = []
    closures = StepClosures()
    closures.add(lambda: closures.add(lambda: made.append("new")))
    closures.add(lambda: 1 // 0)
    closures.add(lambda: made.append("behind"))
    with pytest.raises(ZeroDivisionError):
        closures.run()
    assert made == []
    closures.run()
    assert made == ["behind", "new"]


def test_the_background_makes_calls_in_order_in_one_other_thread() -> None:
    made: list[tuple[int, int]] = []
    background = Background()
    for i in range(20):
        background.start(lambda i=i: made.append((i, threading.get_ident())))
    background.join()
    assert [i for i, _ in made] == list(range(20))
    assert {thread for _, thread in made} != {threading.get_ident()}
    assert len({thread for _, thread in made}) == 1
    assert not background.busy


def test_a_failure_in_the_background_is_raised_once() -> None:
    background = Background()
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise KeyError("metric")

    background.start(fail)
    background.start(lambda: None)
    failed.wait()
    with pytest.raises(KeyError, match="metric"):
        background.join()
    background.join()
    background.raise_failure()


def test_nothing_is_raised_while_a_call_still_runs() -> None:
    background = Background()
    go = threading.Event()
    background.start(go.wait)
    background.raise_failure()
    assert background.busy
    go.set()
    background.join()


def test_who_adds_to_a_full_queue_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_MAX_ASYNC_QUEUE", "2")
    background = Background()
    go = threading.Event()
    made: list[int] = []
    background.start(go.wait)
    background.start(lambda: made.append(1))
    third = threading.Thread(target=background.start, args=(lambda: made.append(2),))
    third.start()
    third.join(0.1)
    assert third.is_alive()
    go.set()
    third.join()
    background.join()
    assert made == [1, 2]


def calls_made_in_a_fork(background: Background) -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends it
        made: list[int] = []
        background.join()
        background.start(lambda: made.append(1))
        background.join()
        os._exit(len(made))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning", "ignore:.*fork:DeprecationWarning")
def test_a_fork_does_not_wait_for_the_thread_that_it_has_not() -> None:
    background, end = Background(), threading.Event()
    background.start(end.wait)
    assert calls_made_in_a_fork(background) == 1
    end.set()
    background.join()


@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning", "ignore:.*fork:DeprecationWarning")
def test_a_fork_does_not_wait_for_the_lock_of_a_thread_that_it_has_not() -> None:
    background, held, end = Background(), threading.Event(), threading.Event()

    def hold() -> None:
        with background._lock:
            held.set()
            end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    assert calls_made_in_a_fork(background) == 1
    end.set()
    holder.join()


def test_what_an_exit_function_adds_is_called() -> None:
    program = (
        "import atexit; from torch_xla._engine.step.step_closures import Background; background = Background();"
        " background.start(lambda: print('one', flush=True)); background.join();"
        " atexit.register(lambda: background.start(lambda: print('two', flush=True)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.stdout.split(), result.returncode) == (["one", "two"], 0), result.stderr


def test_without_a_thread_it_is_called_once_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    background, made = Background(), list[str]()
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", no_thread)
        background.start(lambda: made.append("one"))
        assert made == ["one"]
    background.start(lambda: made.append("two"))
    background.join()
    assert made == ["one", "two"]
