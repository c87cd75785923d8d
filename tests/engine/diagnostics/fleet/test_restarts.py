"""A process that was started again: how long it was missing, and until when it recovers."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from tests.support.scripts import ROOT
from torch_xla._engine.diagnostics.fleet import goodput, restarts
from torch_xla._engine.metrics import accounts
from torch_xla._engine.processes import identity


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run of `torchrun`, of which this process is the second attempt of local rank 1."""
    monkeypatch.setattr(identity, "_place", identity.place())  # else that of the run below would stay
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "attempt_1" / "1" / "error.json"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    return tmp_path


def ended_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def died(folder: Path, at: float) -> None:
    sign = folder / "torch_xla_alive_1"
    sign.write_text(str(ended_process()))
    os.utime(sign, (at, at))


def test_the_first_process_of_a_run_misses_nothing(folder: Path) -> None:
    first = restarts.Restart(time.time())
    assert first.missing == 0 and not first.recovers()


def test_the_time_since_the_last_sign_of_the_process_before_is_missing(folder: Path) -> None:
    died(folder, at=1000.0)
    assert restarts.Restart(1030.5).missing == 30.5


def test_a_sign_says_when_it_was_given_and_by_which_process(folder: Path) -> None:
    first = restarts.Restart(time.time())
    before = time.time()
    first.give_sign()
    sign = folder / "torch_xla_alive_1"
    os.utime(sign, (0, 0))
    first.give_sign()
    assert before - 0.001 <= sign.stat().st_mtime <= time.time() and sign.read_text() == str(os.getpid())


def test_a_helper_is_not_taken_for_a_successor_and_gives_no_sign(folder: Path) -> None:
    restarts.Restart(time.time()).give_sign()
    sign = folder / "torch_xla_alive_1"
    os.utime(sign, (5, 5))
    helper = restarts.Restart(1000.0)
    helper.give_sign()
    assert helper.missing == 0 and not helper.recovers() and sign.stat().st_mtime == 5


def test_an_interrupted_first_sign_counts(folder: Path) -> None:
    (folder / "torch_xla_alive_1").touch()
    assert restarts.Restart(time.time() + 9).missing > 8


def test_a_folder_that_is_gone_stops_the_signs(folder: Path) -> None:
    first = restarts.Restart(time.time())
    folder.rmdir()
    first.give_sign()
    first.give_sign()


def test_without_the_folder_of_torchrun_the_count_says_that_it_is_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    assert not restarts.Restart(0.0).is_recovering
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            found = restarts.Restart(0.0)
            assert found.is_recovering and found.missing == 0


def run_eagerly(x: torch.Tensor) -> torch.Tensor:
    torch_xla.experimental.eager_mode(True)
    try:
        return x * 2
    finally:
        torch_xla.experimental.eager_mode(False)


def run_recorded(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize("ends_steps", [False, True])
@pytest.mark.parametrize("way", ["recorded", "eager", "replayed", "compiled"])
def test_it_recovers_until_its_loop_runs_in_each_way_of_running(way: str, ends_steps: bool, folder: Path) -> None:
    run = {
        "recorded": run_recorded,
        "eager": run_eagerly,
        "replayed": torch_xla.compile(run_recorded, replay=True),
        "compiled": torch.compile(run_recorded, backend="openxla"),
    }[way]
    x = torch.ones(3, device="xla")
    x.tolist()
    met.clear_all()
    died(folder, at=1000.0)
    found = restarts.Restart(1001.0)
    assert found.recovers()
    for _ in range(4):  # a replayed function is recorded at first
        assert run(x).tolist() == [2, 2, 2]
        if ends_steps:
            torch_xla.sync()
    assert not found.recovers()


def test_goodput_counts_the_missing_time_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = accounts.Ledger(time.perf_counter() - 2)
    monkeypatch.setattr(accounts, "ledger", ledger)
    monkeypatch.setattr(restarts._ended_steps, "value", 0)
    monkeypatch.setattr(restarts._repeated_programs, "value", 0)
    died(folder, at=time.time() - 32)
    monkeypatch.setattr(goodput, "_restart", None)  # last: the thread of an earlier test may look at any time
    found = torch_xla.debug.goodput()
    assert 32 <= found.seconds[accounts.RECOVERY] < 33 and found.total == found.seconds[accounts.RECOVERY]
    ledger._since -= 3  # three more seconds, in which no step ends
    found = torch_xla.debug.goodput()
    assert 35 <= found.seconds[accounts.RECOVERY] < 37
    monkeypatch.setattr(restarts._ended_steps, "value", 1)
    ledger._since -= 3
    after = torch_xla.debug.goodput()
    assert after.seconds[accounts.RECOVERY] == found.seconds[accounts.RECOVERY] and after.total >= found.total + 3


RESTARTED = """
import json, os, signal, sys, time
from pathlib import Path
import torch, torch_xla

folder, rank, again = Path(sys.argv[1]), int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
step = lambda x: x * 2 + 1
if rank:
    step = torch.compile(step, backend="openxla")  # without an end of a step
x = torch.ones(3, device="xla")
for number in range(4):
    x = step(x)
    if not rank:
        torch_xla.sync()
    x.tolist()
    if number == 0:
        first = time.time()
    time.sleep(0.4)
if not again:
    time.sleep(60 if rank else 1)
    (folder / "killed").write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)
seconds = torch_xla.debug.goodput().seconds
(folder / f"{rank}.json").write_text(json.dumps([first, seconds["recovery"] + seconds["compile"], seconds["step"]]))
"""


@pytest.mark.slow
def test_torchrun_restarts_and_the_time_from_the_death_to_the_first_step_is_recovery(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESTARTED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PJRT_DEVICE": "CPU"}
    done = subprocess.run(
        [*command, str(tmp_path / "train.py"), str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    killed = float((tmp_path / "killed").read_text())
    for rank in range(2):
        first, lost, stepped = json.loads((tmp_path / f"{rank}.json").read_text())
        # The other process is ended after the one that was killed. A reading is a second long, and so is the pause
        # between two signs.
        assert (first - killed) * 0.5 < lost < first - killed + 2.5
        assert stepped > 0
