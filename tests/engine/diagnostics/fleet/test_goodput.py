"""Where the time goes: each kind of work is in its account, in all ways of running."""

import logging
import time
from collections.abc import Callable

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.diagnostics.fleet import goodput
from torch_xla._engine.metrics import accounts
from torch_xla.distributed.parallel_loader import MpDeviceLoader


def spent(work: Callable[[], object]) -> goodput.Goodput:
    before = torch_xla.debug.goodput()
    start = time.perf_counter()
    work()
    took = time.perf_counter() - start
    found = torch_xla.debug.goodput() - before
    assert took <= found.total < took + 0.5
    return found


def steps(count: int = 3) -> None:
    x = torch.ones(3, device="xla")
    for _ in range(count):
        x = x * 2 + 1
        torch_xla.sync()
    x.tolist()


def test_steps_are_counted_also_where_metrics_are_cleared() -> None:
    def work() -> None:
        steps(3)
        torch_xla.debug.goodput()
        met.clear_all()
        steps(2)

    assert spent(work).steps == 5


def test_a_compilation_is_in_its_account() -> None:
    def work() -> None:
        torch.rand(113, 7, device="xla").sin().cos().erf().sum().item()

    assert spent(work).seconds[accounts.COMPILE] > 0.001


def test_time_without_the_device_is_idle() -> None:
    steps()
    torch_xla.debug.goodput()
    found = spent(lambda: time.sleep(0.2))
    assert found.seconds[accounts.IDLE] >= 0.2
    assert found.fraction < 0.1


def test_waiting_for_a_batch_is_input() -> None:
    def batches() -> object:
        for _ in range(3):
            time.sleep(0.1)
            yield torch.ones(2)

    class Loader:
        def __iter__(self) -> object:
            return batches()

        def __len__(self) -> int:
            return 3

    found = spent(lambda: list(MpDeviceLoader(Loader(), torch.device("xla"))))
    assert found.seconds[accounts.INPUT] >= 0.2


def test_a_slow_step_is_a_step_in_each_way_of_running() -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return x * 2

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.ones(3, device="xla")
    replayed = torch_xla.compile(step, replay=True)
    compiled = torch.compile(step, backend="openxla")

    def eagerly(x: torch.Tensor) -> torch.Tensor:
        torch_xla.experimental.eager_mode(True)
        try:
            return step(x)
        finally:
            torch_xla.experimental.eager_mode(False)

    for run in (slow, replayed, compiled, eagerly):
        for _ in range(3):
            run(x)
        torch_xla.sync()
        torch_xla.debug.goodput()
        steps = []
        for _ in range(3):
            before = torch_xla.debug.goodput()
            time.sleep(0.03)  # the host's part of a step
            result = run(x)
            torch_xla.sync()
            steps.append((torch_xla.debug.goodput() - before).seconds[accounts.STEP])
            assert result.tolist() == [2, 2, 2]
        # The thread that decides once a second may do so in one of the sleeps, before anything has run.
        assert sorted(steps)[1] >= 0.03, run


def test_the_start_of_a_process_is_idle_and_not_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goodput, "_restart", None)
    monkeypatch.setattr(goodput, "_progress", (0, 0, 0))
    assert goodput._open_account() == accounts.IDLE
    steps()
    assert goodput._open_account() == accounts.STEP


def test_a_minute_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Enough(Exception):
        pass

    told: list[goodput.Goodput] = []

    def sleep(seconds: float) -> None:
        if told:
            raise Enough

    monkeypatch.setattr(goodput, "MINUTE", 0.0)
    monkeypatch.setattr(goodput.time, "sleep", sleep)
    monkeypatch.setattr(goodput, "each_minute", [told.append])
    with caplog.at_level(logging.INFO, "torch_xla.goodput"), pytest.raises(Enough):
        goodput._tick()
    assert "goodput" in caplog.text and "steps" in caplog.text and len(told) == 1


def test_a_step_of_cached_programs_books_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    steps()
    calls = []
    enter = accounts.Ledger.enter
    monkeypatch.setattr(accounts.Ledger, "enter", lambda *given: calls.append(given) or enter(*given))
    steps(20)
    assert calls == []


def test_printed_it_is_one_line() -> None:
    seconds = dict.fromkeys(accounts.NAMES, 0.0) | {accounts.STEP: 9.0, accounts.INPUT: 1.0}
    text = str(goodput.Goodput(seconds, 90))
    assert text == "goodput 90.0% of 10.0 s (step 9.0 s, input 1.0 s); 90 steps, 100.0 ms each"
