"""Processes report their state and receive declared failures; here one process plays three."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.support.key_value import connections
from torch_xla._engine.errors import PeerError
from torch_xla._engine.processes import heartbeats
from torch_xla._engine.processes.heartbeats import Here, Watch
from torch_xla._engine.processes.identity import Place

ELSEWHERE = Here("another machine", 1)


@pytest.fixture
def watches() -> Iterator[list[Watch]]:
    """Three parts of a program that run, each on a machine of its own."""
    with connections(3) as made:
        everyone = [Here(f"machine {index}", os.getpid()) for index in range(3)]
        found = [Watch(connection, Place(index, 3), everyone, False) for index, connection in enumerate(made)]
        for watch in found:
            watch.start()
        yield found
        for watch in found:
            watch.end()
            os.close(watch._bell)
            os.close(watch._ring)


def until(holds: object) -> None:
    for _ in range(6000):
        if holds():  # type: ignore[operator]
            return
        time.sleep(0.01)
    raise AssertionError("it did not come")


def test_a_fault_reaches_all_and_the_first_is_what_counts(watches: list[Watch]) -> None:
    watches[1].declare("Process 1 of 3 has no disk.")
    watches[2].declare("another")
    until(lambda: all(watch.fault for watch in watches))
    assert {watch.fault for watch in watches} == {"Process 1 of 3 has no disk."}
    watches[0].step = 4
    error = watches[0].error()
    assert isinstance(error, PeerError)
    assert str(error).startswith("Process 1 of 3 has no disk.\nProcess 0 of 3 raises this at step 4")


def test_each_says_where_it_is_when_it_is_asked(watches: list[Watch]) -> None:
    watches[2].step = 9
    reports = watches[0].reports([1, 2])
    assert sorted(reports) == [1, 2] and reports[2]["step"] == 9
    assert watches[0].described(reports, 2).startswith("Process 2 is at step 9")
    assert "test_heartbeats.py" in watches[0].described(reports, 1)
    assert watches[0].described({}, 1).startswith("Process 1 does not answer. ")


def test_what_is_settled_stays_and_numbers_count(watches: list[Watch]) -> None:
    assert watches[0].propose("name", "first") == "first" and watches[1].propose("name", "second") == "first"
    assert [watch.next_number("tickets") for watch in watches] == [1, 2, 3]


def test_letters_of_other_kinds_go_to_their_takers(
    watches: list[Watch], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[object] = []
    monkeypatch.setitem(heartbeats.handlers, "note", lambda watch, letter: taken.append((watch, letter["text"])))
    monkeypatch.setitem(heartbeats.handlers, "bad", lambda watch, letter: 1 / 0)
    with caplog.at_level("WARNING"):
        watches[0].send([1], {"kind": "bad"})
        watches[0].send([1], {"kind": "note", "text": "hello"})  # it hears what comes next
        until(lambda: taken)
    assert taken == [(watches[1], "hello")] and "Process 1 could not answer" in caplog.text


def test_an_error_of_a_collective_names_who_ended_without_it(watches: list[Watch]) -> None:
    watches[2].end()
    assert watches[0].failure_of("division by zero") is None
    error = watches[0].failure_of("Gloo: connection closed")
    assert error is not None and "Process 2 of 3 ended without a collective that others wait in" in str(error)


def test_who_is_cut_off_speaks_no_more_and_raises(watches: list[Watch]) -> None:
    seen = []
    set_event = watches[0].has_fault.set
    watches[0].has_fault.set = lambda: (seen.append(watches[0].is_cut), set_event())  # type: ignore[assignment, func-returns-value]
    watches[0].cut("The service is gone.")
    assert seen == [False], "the fault is there before anything is refused"
    with pytest.raises(PeerError, match="^The service is gone.\nProcess 0 of 3 raises this"):
        watches[0].propose("name", "value")
    watches[0].declare("not heard")
    assert not watches[1].fault and watches[0].fault == "The service is gone."


def test_the_fault_is_raised_where_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeats.check()
    watch = Watch(None, Place(0, 2), [ELSEWHERE] * 2, False)
    monkeypatch.setattr(heartbeats, "current", watch)
    assert heartbeats.watch() is watch
    heartbeats.check()
    heartbeats.cut("The service is gone.")
    with pytest.raises(PeerError, match="^The service is gone."):
        heartbeats.check()


def test_whether_a_process_has_ended_is_seen_at_once() -> None:
    bell, ring = os.pipe()
    try:
        other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert not heartbeats._has_ended(other.pid, 0.02, bell)
        assert other.stdin is not None
        other.stdin.close()
        assert heartbeats._has_ended(other.pid, 120, bell)
        other.wait()
        assert heartbeats._has_ended(other.pid, 0.01, bell) and not heartbeats.exists(other.pid)
        os.write(ring, b".")
        start = time.monotonic()
        assert not heartbeats._has_ended(os.getpid(), 1000, bell) and time.monotonic() - start < 500
    finally:
        os.close(bell)
        os.close(ring)


def test_processes_that_see_each_others_numbers_are_at_one_place() -> None:
    assert heartbeats.here() == heartbeats.here() and heartbeats.here().pid == os.getpid()
    assert heartbeats._words(-1, "") == "before its first program"
    assert heartbeats._words(3, "train.py:5 in step") == "at step 3, train.py:5 in step"


def test_who_started_it_is_known_if_it_was_gone_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert heartbeats.starter() == os.getppid()
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    started_by = {gone.pid: gone.pid, os.getpid(): os.getppid()}  # the latter by a server that forks
    for pid, expected in started_by.items():
        monkeypatch.setattr(multiprocessing, "parent_process", lambda pid=pid: SimpleNamespace(pid=pid))
        assert heartbeats.starter() == expected
