"""Checkpoints of tensors on a mesh: saved on four devices, loaded on another number and under another layout."""

import importlib
import os
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

import torch_xla
import torch_xla.distributed.xla_backend
from tests.support import compiler, fleet
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, SPMDLoadPlanner, SPMDSavePlanner
from torch_xla.interop import from_jax, to_jax

ROOT = Path(__file__).parents[3]


def run(folder: Path, what: str, devices: int) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PJRT_", "XLA_", "CPU_"))}
    if devices > 1:
        environment["XLA_FLAGS"] = compiler.with_devices(devices)
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.sharded_checkpoints", str(folder), what]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.mark.slow
def test_what_four_devices_saved_is_loaded_by_others(tmp_path: Path) -> None:
    saved = run(tmp_path, "save", 4)
    assert saved.returncode == 0, saved.stderr
    for devices in (2, 8, 1):
        loaded = run(tmp_path, "load", devices)
        assert loaded.returncode == 0, (devices, loaded.stderr)


@pytest.mark.slow
def test_a_process_killed_while_it_saves_loses_nothing_that_was_complete(tmp_path: Path) -> None:
    assert run(tmp_path, "die", 4).returncode == -9
    manager = CheckpointManager(str(tmp_path / "killed"), 1, chkpt_on_preemption=False)
    assert manager.all_steps() == [0]
    state = {"0.weight": torch.zeros(8, 16, device="xla")}
    manager.restore(0, state)
    assert state["0.weight"].abs().sum().item() > 0


@pytest.mark.parametrize("size", [(2,), (6,), (4, 1)])
def test_a_tensor_of_another_shape_is_refused(size: tuple[int, ...], tmp_path: Path) -> None:
    manager = CheckpointManager(str(tmp_path), 1, chkpt_on_preemption=False)
    manager.save(1, {"w": torch.ones(4, device="xla")})
    with pytest.raises(
        CheckpointException, match=r"Size mismatch between saved torch\.Size\(\[4\]\) and current: .* w"
    ):
        manager.restore(1, {"w": torch.zeros(size, device="xla")})


def test_a_manager_saves_at_intervals_and_keeps_some(tmp_path: Path) -> None:
    manager = CheckpointManager(str(tmp_path), 3, max_to_keep=2, chkpt_on_preemption=False)
    w = torch.zeros(2, device="xla")
    for step in range(10):
        w += 1
        assert manager.save_async(step, {"w": w}) == (step % 3 == 0)
    manager.join()
    assert manager.all_steps() == [6, 9]
    assert manager.save(6, {"w": w}) and manager.all_steps() == [6, 9]
    manager.restore(9, {"w": w.zero_()})
    assert w.tolist() == [10, 10]
    with pytest.raises(ValueError, match="no complete checkpoint of step 3"):
        manager.restore(3, {"w": w})
    with pytest.raises(ValueError, match="save_interval must be at least 1"):
        CheckpointManager(str(tmp_path), 0)


def test_the_checkpoints_written_first_are_removed_first(tmp_path: Path) -> None:
    def manager() -> CheckpointManager:
        return CheckpointManager(str(tmp_path), 10, max_to_keep=2, chkpt_on_preemption=False)

    state, first = {"w": torch.zeros(2, device="xla")}, manager()
    for step, kept in ((10, [10]), (20, [10, 20]), (30, [20, 30]), (10, [10, 30])):
        assert first.save(step, state, force=True) and first.all_steps() == kept
    again = manager()  # which finds them in that order
    assert again.save(20, state) and again.all_steps() == [10, 20]


def test_what_saves_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, may_save = CheckpointManager(str(tmp_path), 1, chkpt_on_preemption=False), threading.Event()
    save = manager._save

    def waiting(*args: Any) -> None:
        may_save.wait()
        save(*args)

    monkeypatch.setattr(manager, "_save", waiting)
    assert manager.save_async(3, {"w": torch.ones(2, device="xla")}) and manager.all_steps() == []
    may_save.set()
    manager.join()
    assert manager.all_steps() == [3]


def test_what_a_thread_saves_is_not_what_the_training_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, may_save = CheckpointManager(str(tmp_path), 1, chkpt_on_preemption=False), threading.Event()
    save = manager._save

    def waiting(*args: Any) -> None:
        may_save.wait()
        save(*args)

    def state_of(count: int) -> dict[str, Any]:
        w = torch.nn.Parameter(torch.ones(2, device="xla"))
        optimizer = torch.optim.AdamW([w])
        for _ in range(count):
            w.sum().backward()
            optimizer.step()
        numbers = torch.full((2,), count)
        return {
            "optimizer": optimizer.state_dict(), "numbers": numbers, "view": numbers[1:], "array": np.full(2, count),
            "losses": [{"seen": count}], "leaf": torch.nn.Parameter(torch.full((1,), float(count))), "w": w,
            "computed": torch.nn.Parameter(torch.full((1,), float(count))) * 2,
        }  # fmt: skip

    monkeypatch.setattr(manager, "_save", waiting)
    state = state_of(1)
    assert manager.save_async(3, state)
    state["optimizer"]["state"][0]["step"] += 7
    state["numbers"] += 7
    state["array"] += 7
    state["losses"][0]["seen"] += 7
    with torch.no_grad():
        for name in ("leaf", "w"):
            state[name] += 7
    may_save.set()
    manager.join()
    expected, found = state_of(1), state_of(0)
    prime = state_of(2)["optimizer"]
    found["optimizer"] = prime
    manager.restore(3, found)
    assert found["optimizer"]["state"][0]["step"].item() == 1
    assert found["numbers"].tolist() == expected["numbers"].tolist() and found["view"].tolist() == [1]
    assert found["array"].tolist() == [1, 1] and found["losses"] == [{"seen": 1}]
    assert found["leaf"].item() == 1 and torch.equal(found["w"].cpu(), expected["w"].cpu())
    assert found["computed"].item() == 2


def test_a_planner_tells_tensors_in_parts_from_the_rest() -> None:
    state = {"model": {"weight": torch.ones(2, 2, device="xla"), "count": 3}}
    for planner in (SPMDSavePlanner(), SPMDLoadPlanner()):
        planner.set_up_planner(state, is_coordinator=True)
        assert planner.sharded_state_dict == {} and list(planner.unsharded_state_dict) == [
            "model.weight",
            "model.count",
        ]


@pytest.mark.slow
def test_killed_at_any_byte_the_last_whole_checkpoint_loads() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.killed_saves", "24"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_checkpoints_are_written_to_an_address_and_read_on_another_manager() -> None:
    address = "memory://checkpoints/run"
    manager = CheckpointManager(address, 5, max_to_keep=2, chkpt_on_preemption=False)
    w = torch.zeros(2, device="xla")
    for step in range(16):
        w += 1
        manager.save_async(step, {"w": w, "step": step})
    manager.join()
    assert manager.all_steps() == [10, 15]
    state = {"w": torch.zeros(2, device="xla"), "step": 0}
    other = CheckpointManager(address, 5, chkpt_on_preemption=False)
    assert other.restore_latest(state) == 15 == state["step"] and state["w"].tolist() == [16, 16]
    files = fsspec.filesystem("memory")
    data = next(name for name in files.ls("/checkpoints/run/15", detail=False) if name.endswith(".distcp"))
    files.pipe_file(data, files.cat_file(data)[:-1] + b"?")
    with pytest.warns(UserWarning, match="the checkpoint of step 15 in memory://.* is damaged"):
        assert other.restore_latest(state) == 10
    assert state["w"].tolist() == [11, 11]
    files.rm("/checkpoints/run/10/.complete")  # as if it were killed before the end
    assert other.all_steps() == [15]


def test_an_address_names_what_is_not_installed() -> None:
    with pytest.raises(ImportError, match="'gs://bucket/run' is an address, and what reads and writes it is not inst"):
        CheckpointManager("gs://bucket/run", 1, chkpt_on_preemption=False)
    with pytest.raises(ValueError, match="fsspec knows no store by the name of 'nothing'"):
        CheckpointManager("nothing://bucket", 1, chkpt_on_preemption=False)


def test_nothing_whole_is_none(tmp_path: Path) -> None:
    assert CheckpointManager(str(tmp_path), 1, chkpt_on_preemption=False).restore_latest({}) is None


def train_while_saving(folder: str) -> tuple[list[int], list[float]]:
    """Train with collectives while a thread saves, later in process 0 than in process 1; return steps and values."""
    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")
    both = dist.new_group(backend="cpu:gloo,xla:xla")
    manager = CheckpointManager(folder, 4, process_group=both, chkpt_on_preemption=False)
    save = manager._save

    def late(*args: Any) -> None:
        time.sleep(0.3 * (1 - dist.get_rank()))
        save(*args)

    manager._save = late  # type: ignore[method-assign]
    w = torch.ones(2, device="xla")
    for step in range(12):
        dist.all_reduce(w, group=both)
        torch_xla.sync()
        on_host = torch.ones(1)
        dist.all_reduce(on_host, group=both)
        w = w * (on_host / 4).to("xla")
        manager.save_async(step, {"w": w})
        time.sleep(0.02)
    manager.join()
    state = {"w": torch.zeros(2, device="xla")}
    assert manager.restore_latest(state) == 8
    dist.destroy_process_group(both)
    return manager.all_steps(), state["w"].tolist()


@pytest.mark.slow
def test_a_thread_saves_while_the_processes_exchange_data(tmp_path: Path) -> None:
    assert fleet.fleet_of(2).run(train_while_saving, str(tmp_path)) == [([0, 4, 8], [1.0, 1.0])] * 2


@pytest.mark.skipif(find_spec("orbax") is None, reason="needs pip install orbax-checkpoint")
def test_orbax_writes_and_reads_tensors_as_arrays_of_jax(tmp_path: Path) -> None:
    checkpointer = importlib.import_module("orbax.checkpoint").StandardCheckpointer()
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("xla", torch.bfloat16)
    model(torch.randn(5, 3).to("xla", torch.bfloat16)).sum().backward()
    expected = {name: each.cpu().clone() for name, each in model.state_dict().items()}
    checkpointer.save(tmp_path / "one", {name: to_jax(each.detach()) for name, each in model.state_dict().items()})
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1)  # while a thread may still write
    torch_xla.sync(wait=True)
    checkpointer.wait_until_finished()
    found = {name: from_jax(each) for name, each in checkpointer.restore(tmp_path / "one").items()}
    model.load_state_dict(found)
    for name, each in model.state_dict().items():
        assert each.dtype == expected[name].dtype and torch.equal(each.cpu(), expected[name]), name
