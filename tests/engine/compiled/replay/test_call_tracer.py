"""One call is watched: what it does besides recording, on which line, and what it looks at."""

import gc
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_xla
from torch_xla._engine.compat.patches import autograd_observers
from torch_xla._engine.compiled.replay import call_tracer
from torch_xla._engine.compiled.replay.call_tracer import CallWatch
from torch_xla._engine.compiled.replay.guards import Container, Look, Reached
from torch_xla._engine.metrics import events
from torch_xla._engine.tensor.device import LOCK

HERE = Path(__file__).name


def watched(function: Callable[[], Any]) -> CallWatch:
    with CallWatch() as watch:
        function()
    return watch


def tensor() -> torch.Tensor:
    x = torch.ones(3).to("xla")
    torch_xla.sync()
    return x


def test_what_dynamo_notes_of_modules_is_no_code_that_it_compiled() -> None:
    layers = torch.nn.ModuleList(torch.nn.Tanh() for _ in range(3)).to("xla")
    x = tensor()

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()

    def step() -> torch.Tensor:
        out = x
        for layer in layers[:2]:  # a list that is made here, and goes when the loop ends
            out = layer(out)
        Own()
        return out

    compiled = torch.compile(step, backend="eager")
    compiled()  # from now on Dynamo notes which modules are made
    assert not watched(step).through_dynamo
    assert watched(compiled).through_dynamo
    torch_xla.sync()


def test_what_records_alone_has_no_reason() -> None:
    x = tensor()

    def step() -> torch.Tensor:
        return (x * 2).sum() + len([1, 2])

    watch = watched(step)
    assert not watch.unseen and not watch.reasons and not watch.unknown and not watch.uploads
    assert not any("print" in names for names in watch.reads().codes.values())
    torch_xla.sync()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: tensor().sum().item(), "it reads a value on the host"),
        (lambda: (tensor() * 2, torch_xla.sync()), "it ends a step inside"),
        (lambda: random.random(), "it draws random numbers of Python's `random`"),
        (lambda: np.random.rand(), "it draws random numbers of NumPy"),
        (lambda: torch.rand(1), "it draws random numbers of PyTorch on the CPU"),
    ],
)
def test_what_a_replay_would_leave_out_is_a_reason(function: Callable[[], Any], text: str) -> None:
    assert any(each.startswith(text) for each in watched(function).reasons)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: print(end=""), "it prints"),
        (lambda: time.perf_counter(), "it looks at the clock"),
        (lambda: tensor()._version, "it looks at `_version` of a tensor"),
    ],
)
def test_what_is_not_known_is_told_with_its_line(function: Callable[[], Any], text: str) -> None:
    unknown = watched(function).unknown
    assert any(each.startswith(text) and f"{HERE}:{function.__code__.co_firstlineno}" in each for each in unknown)


def test_uploads_are_noted_with_their_line() -> None:
    def step() -> torch.Tensor:
        return torch.ones(3).to("xla")

    (line,) = watched(step).uploads
    assert line[0].endswith(HERE) and line[1] == step.__code__.co_firstlineno + 1


def test_the_line_that_changed_a_suspect_is_found() -> None:
    held = {"steps": 0, "other": 0}
    found = Reached(containers=[Container("it", held, Look.MAP)])
    found.accept_all()
    held["steps"] = -1
    suspects = found.differences()

    def step() -> None:
        held["other"] += 1
        held["steps"] += 1
        held["other"] += 1

    with CallWatch(suspects) as watch:
        step()
    line = watch.line_of("it['steps']")
    assert line is not None and line[1] == step.__code__.co_firstlineno + 2
    assert watch.line_of("it['other']") is None


def test_who_profiles_already_goes_on_and_nothing_is_known() -> None:
    seen = []
    sys.setprofile(lambda *event: seen.append(event))
    try:
        watch = watched(lambda: len([]))
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert watch.unseen and seen


def test_an_interrupt_leaves_the_lock_as_it_was() -> None:
    with LOCK:
        with pytest.raises(KeyboardInterrupt), CallWatch():
            LOCK.acquire()
            raise KeyboardInterrupt
        assert LOCK._recursion_count() == 1  # type: ignore[attr-defined]
    assert LOCK._recursion_count() == 0  # type: ignore[attr-defined]


def test_everything_is_as_before_also_after_an_error() -> None:
    before = sys.getprofile(), sys.gettrace(), list(events._guards)
    with pytest.raises(ZeroDivisionError), CallWatch():
        raise ZeroDivisionError
    assert (sys.getprofile(), sys.gettrace(), events._guards) == before
    assert isinstance(tensor()._version, int)


@pytest.mark.parametrize("place", ["listen", "unlisten"])
def test_an_interrupt_on_the_way_in_or_out_leaves_nothing_behind(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    before = sys.getprofile(), sys.gettrace(), list(events._guards), list(autograd_observers._listeners)
    watch = CallWatch()
    with monkeypatch.context() as once:
        once.setattr(autograd_observers, place, interrupt)
        with pytest.raises(KeyboardInterrupt), watch:
            pass
    watch.end()
    assert (sys.getprofile(), sys.gettrace(), events._guards, autograd_observers._listeners) == before


def test_nothing_is_collected_while_a_call_is_watched() -> None:
    seen = []

    @torch_xla.compile(replay=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        seen.append(gc.isenabled())
        return x + 1

    step(tensor())
    assert seen == [False] and gc.isenabled()


def test_names_that_were_read_are_collected() -> None:
    thing = type("Thing", (), {"rate": 0.5})()

    def step() -> Any:
        return thing.rate

    reads = watched(step).reads()
    assert "rate" in reads.names and step.__code__ in reads.codes and not reads.compiled


def test_threads_that_begin_at_once_take_turns() -> None:
    """CPython 3.11 refuses a second trace or profile function while an audit hook looks at the first, and 3.12 ends."""
    active = True

    def let_others_run(event: str, _: object) -> None:
        if active and event in ("sys.settrace", "sys.setprofile"):
            time.sleep(0.01)

    sys.addaudithook(let_others_run)  # for the rest of the process
    results: list[object] = []

    def watch_one() -> None:
        try:
            for _ in range(5):
                results.append(watched(lambda: random.random()).unseen)
        except RuntimeError as error:
            results.append(error)

    threads = [threading.Thread(target=watch_one) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        active = False
    assert results == [""] * 15


@pytest.mark.skipif(sys.version_info[:2] != (3, 12), reason="other releases look at calls of several threads at once")
def test_a_call_whose_turn_does_not_come_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_tracer, "_PATIENCE", 0.05)
    others: list[str] = []

    def wait_for_another() -> None:
        thread = threading.Thread(target=lambda: others.append(watched(lambda: None).unseen))
        thread.start()
        thread.join()

    assert not watched(wait_for_another).unseen
    assert others == ["another thread's call was looked at, which Python 3.12 does for one thread at a time"]
    assert not watched(lambda: None).unseen
