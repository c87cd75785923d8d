"""States kept in the memory of hosts: what they survive, what is refused, and that the memory is given back."""

import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.scripts import ROOT
from torch_xla._engine.metrics import counters
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _keeper, _memory, _slots


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder that stands for the host's shared memory."""
    monkeypatch.setattr(_keeper, "ROOT", tmp_path / "shared")
    (tmp_path / "shared").mkdir()
    yield tmp_path / "shared"
    for each in _keeper._keepers.values():
        each.kill()
        each.wait()
    _keeper._keepers.clear()


def manager(folder: Path, every: int = 1, memory_every: int = 1) -> CheckpointManager:
    return CheckpointManager(str(folder / "steps"), every, memory_every=memory_every, chkpt_on_preemption=False)


def state(value: float) -> dict[str, Any]:
    w = torch.full((300_000,), float(value), device="xla")
    count = torch.tensor(int(value))
    return {"model": {"w": w, "half": w[:3].bfloat16()}, "count": count, "note": str(float(value)), "none": w[:0]}


def restored(found: CheckpointManager, **options: Any) -> tuple[Any, ...]:
    into = state(0)
    step = found.restore_latest(into)
    assert step is None or into["model"]["w"].eq(float(into["note"])).all() and into["count"] == float(into["note"])
    return step, into["note"], found.restored_from


def test_the_newest_state_is_loaded_wherever_it_is(tmp_path: Path) -> None:
    first = manager(tmp_path, every=4, memory_every=2)
    assert restored(first) == (None, "0.0", "")
    assert [step for step in range(7) if first.save_async(step, state(step))] == [0, 2, 4, 6]
    first.join()
    assert first.all_steps() == [0, 4] and first.should_save(2) and not first.should_save(3)
    assert restored(manager(tmp_path)) == (6, "6.0", "memory")
    assert first.save(9, state(9), force=True)
    assert restored(manager(tmp_path)) == (9, "9.0", "path")
    assert restored(manager(tmp_path)) == (9, "9.0", "path")  # the older state in memory is gone


def test_what_is_kept_does_not_change_with_the_training(tmp_path: Path) -> None:
    kept, values = manager(tmp_path, every=100), state(5)
    assert kept.save_async(7, values)
    values["model"]["w"] += 1
    values["count"] += 1
    kept.join()
    assert restored(kept) == (7, "5.0", "memory")
    values["model"]["w"] += 1  # and what was restored is not the memory that is kept
    assert restored(kept) == (7, "5.0", "memory")


@pytest.mark.parametrize("how", ["save", "save_async"])
def test_what_is_due_in_memory_and_at_the_path_is_copied_once(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, copied, written = manager(tmp_path), [], []
    copy = _slots.array_at

    def counted(memory: torch.Tensor, at: int, shape: Any, dtype: torch.dtype) -> Any:
        copied.append(at)
        return copy(memory, at, shape, dtype)

    monkeypatch.setattr(_memory, "array_at", counted)
    monkeypatch.setattr(kept, "_save", lambda step, flat: written.append(flat))
    values = state(3)
    assert getattr(kept, how)(3, values)
    kept.join()
    assert kept._memory is not None
    slot = kept._memory._slot_at(0, 3)[0].memory()
    model = written[0]["model"]
    found = [*model["w"].shards.values(), *model["half"].shards.values(), written[0]["count"]]
    assert len(copied) == len(set(copied)) == 4  # "none" is one of them
    assert all(slot.data_ptr() <= each.data_ptr() < slot.data_ptr() + len(slot) for each in found)
    assert found[0].eq(3).all() and found[1].tolist() == [3, 3, 3] and written[0]["note"] == "3.0"


def test_a_slow_disk_is_written_the_state_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, may_write = manager(tmp_path, every=10), threading.Event()
    save = kept._save

    def late(*args: Any) -> None:
        assert may_write.wait(60)
        save(*args)

    monkeypatch.setattr(kept, "_save", late)
    for step in range(6):  # the slot of step 0 is due for step 2
        kept.save_async(step, state(step))
    may_write.set()
    kept.join()
    assert kept._memory is not None
    inodes = [slot.data.stat().st_ino for slot in kept._memory._slots[0]]
    for step in (6, 7):
        kept.save_async(step, state(step))
    kept.join()
    assert [slot.data.stat().st_ino for slot in kept._memory._slots[0]] == inodes  # no new memory
    kept._memory.forget()
    assert restored(kept) == (0, "0.0", "path")


def test_memory_that_was_forgotten_or_sent_is_written_again(tmp_path: Path) -> None:
    kept = manager(tmp_path, every=100)
    assert kept._memory is not None
    inodes = []
    for step in range(1, 7):
        kept.save(step, state(step))
        slot = kept._memory._slot_at(0, step)[0]
        inodes.append(slot.data.stat().st_ino)
        assert slot.sent()[1][:4].view(torch.float32).item() == step  # to another process, which copies it
        if step == 3:
            kept._memory.forget()
            assert restored(manager(tmp_path, every=100)) == (None, "0.0", "")
    assert len(set(inodes)) == 2
    assert restored(kept) == (6, "6.0", "memory")  # the device may use this memory from now on
    kept.save(7, state(7))
    kept.save(8, state(8))
    assert kept._memory._slot_at(0, 8)[0].data.stat().st_ino not in inodes


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.float8_e4m3fn, torch.bool, torch.complex64], ids=str)
def test_every_dtype_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    kept, values = manager(tmp_path), torch.tensor([1.0, 0.0, 2.0]).to(dtype)
    kept.save(1, {"x": values.to("xla")})
    for source in ("memory", "path"):
        into = {"x": torch.zeros(3, dtype=dtype, device="xla")}
        assert kept.restore_latest(into) == 1 and kept.restored_from == source
        assert into["x"].cpu().to(torch.complex64).equal(values.to(torch.complex64))
        assert kept._memory is not None
        kept._memory.forget()


def test_a_step_is_restored_by_its_number(tmp_path: Path) -> None:
    kept, into = manager(tmp_path, every=4), state(0)
    for step in range(6):
        kept.save(step, state(step))
    kept.restore(4, into)
    assert into["note"] == "4.0" and kept.restored_from == "memory"
    kept.restore(0, into)
    assert into["note"] == "0.0" and kept.restored_from == "path"
    with pytest.raises(ValueError, match="no complete checkpoint of step 5"):
        kept.restore(5, into)


@pytest.mark.parametrize("what", ["data", "head"])
def test_damage_falls_to_what_is_whole(tmp_path: Path, what: str, recwarn: pytest.WarningsRecorder) -> None:
    kept = manager(tmp_path, every=4)
    for step in range(7):
        kept.save(step, state(step))
    memory = kept._memory
    assert memory is not None
    for number, (step, expected) in enumerate(((6, (5, "5.0", "memory")), (5, (4, "4.0", "path")))):
        path = getattr(memory._slot_at(0, step)[0], what)
        data = bytearray(path.read_bytes())
        data[100_000 if what == "data" else 20] ^= 1
        path.write_bytes(data)
        assert restored(manager(tmp_path)) == expected
        assert len([each for each in recwarn if "damaged" in str(each.message)]) == (number + 1) * (what == "data")


def test_each_changed_bit_changes_the_checksum() -> None:
    data = torch.randint(256, (3 * 8 * _slots._WORDS + 64,), dtype=torch.uint8)
    before = _slots.sum_of(data)
    for at in (0, 7, 8 * _slots._WORDS, len(data) - 1):
        data[at] ^= 128
        assert _slots.sum_of(data) != before
        data[at] ^= 128
    assert _slots.sum_of(data) == before != _slots.sum_of(data.roll(8 * _slots._WORDS))


def test_another_shape_falls_to_the_path_and_says_so(tmp_path: Path) -> None:
    kept = manager(tmp_path)
    kept.save(3, state(3))
    into = {"model": {"w": torch.zeros(2, device="xla")}}
    with pytest.warns(
        UserWarning, match=r"step 3 in the memory .*: 'model.w' has another shape, dtype or sharding now"
    ):
        assert kept._restore_memory(into) is None
    with pytest.warns(UserWarning, match="it has no 'bias'"):
        assert kept._restore_memory({"bias": torch.zeros(2)}) is None


def test_another_number_of_processes_falls_to_the_path_and_says_so(tmp_path: Path) -> None:
    kept = manager(tmp_path)
    kept.save(3, state(3))
    assert kept._memory is not None
    slot, head = kept._memory._slot_at(0, 3)
    slot.commit(pickle.dumps(tuple(head._replace(world=2))))
    with pytest.warns(UserWarning, match="it was kept by 2 processes, and there are 1"):
        assert restored(kept) == (3, "3.0", "path")


def test_a_run_that_begins_anew_forgets_the_later_steps_of_the_one_before(tmp_path: Path) -> None:
    first = manager(tmp_path, every=100)
    for step in (1, 8, 9):
        first.save(step, state(step))
    again = manager(tmp_path, every=100)
    again.save(2, state(2))
    assert restored(again) == (2, "2.0", "memory")


def test_too_little_memory_is_said_and_the_path_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: int) -> None:
        raise OSError(28, "No space left on device")

    kept = manager(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.warns(UserWarning, match="step 1 is not kept in memory: 0.0012 GB .*No space left.*--shm-size"):
        assert kept.save(1, state(1))
    assert restored(kept) == (1, "1.0", "path")


def test_arguments_and_places_are_refused(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="memory_every must be at least 1; got 0"):
        manager(tmp_path, memory_every=0)
    monkeypatch.setattr(_keeper, "ROOT", tmp_path / "none")
    with pytest.raises(RuntimeError, match="needs shared memory in .*none"):
        manager(tmp_path)


def test_the_folder_in_shared_memory_is_the_users_alone(tmp_path: Path, shared: Path) -> None:
    kept = manager(tmp_path)
    assert kept._memory is not None
    folder = kept._memory.folder.parent
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)  # as if another had made it
    with pytest.raises(PermissionError, match="others can reach"):
        manager(tmp_path)
    folder.rename(shared / "moved")
    folder.symlink_to(shared / "moved")
    with pytest.raises(PermissionError, match="others can reach"):
        manager(tmp_path)


def holder(folder: Path) -> int:
    """The keeper of a folder, when it has begun."""
    deadline = time.monotonic() + 60
    while (found := _keeper.holder_of(folder)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_killed_keeper_is_said_and_started_again(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = manager(tmp_path, every=100)
    assert kept._memory is not None
    folder, before = kept._memory.folder.parent, counters.value_of("CheckpointKeeperRestart") or 0
    first = holder(folder)
    os.kill(first, signal.SIGKILL)
    _keeper._keepers[folder].wait()
    with pytest.warns(UserWarning, match=rf"at step 1, the process that gives {folder} back .* another one is started"):
        kept.save(1, state(1))
    assert holder(folder) != first and counters.value_of("CheckpointKeeperRestart") == before + 1
    kept.save(2, state(2))
    # A keeper of an earlier attempt is no child of this process.
    own = _keeper._keepers.pop(folder)
    kept.save(3, state(3))
    assert not recwarn.list and restored(manager(tmp_path, every=100)) == (3, "3.0", "memory")
    _keeper._keepers[folder].wait()  # of the last manager: it left the lock to the other one
    own.kill()
    own.wait()

    def fails(*args: object, **options: object) -> None:
        raise OSError(11, "no more processes")

    monkeypatch.setattr(subprocess, "Popen", fails)
    with pytest.warns(UserWarning, match=r"no other starts: .*no more processes\. Remove the folder"):
        kept.save(4, state(4))
    assert restored(kept) == (4, "4.0", "memory") and counters.value_of("CheckpointKeeperLost")


def test_a_folder_that_was_removed_ends_nothing(tmp_path: Path) -> None:
    kept = manager(tmp_path)
    assert kept._memory is not None
    os.kill(holder(kept._memory.folder.parent), signal.SIGKILL)
    shutil.rmtree(kept._memory.folder.parent)
    with pytest.warns(UserWarning) as said:
        assert kept.save(1, state(1))
    assert [each for each in said if "step 1 is not kept in memory" in str(each.message)]
    assert restored(kept) == (1, "1.0", "path")


def torchrun(folder: Path, what: str, hosts: int) -> list[dict[str, Any]]:
    """Run two processes on this many hosts, each with an agent of its own; return what they say at their end."""
    meet = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--local-addr=127.0.0.1", "--rdzv-id=kept"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meet.append(f"--rdzv-endpoint=127.0.0.1:{free.getsockname()[1]}")
    agent = [sys.executable, "-m", "torch.distributed.run", "--max-restarts=2", "--monitor-interval=0.1"]
    where = ["--standalone", "--nproc-per-node=2"] if hosts == 1 else meet
    command = [*agent, *where, "-m", "tests.support.kept_in_memory", str(folder), what]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PJRT_DEVICE": "CPU"}
    jobs = [
        subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(hosts)
    ]
    try:
        said = [job.communicate(timeout=300)[1] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert [job.returncode for job in jobs] == [0] * hosts, "\n".join(said)
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    for each in found:
        given_back(Path(each["folder"]))
    assert [each["is_equal"] for each in found] == [True, True]
    return found


def given_back(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < deadline, f"{folder} is left"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "hosts", "expected", "said"),
    [
        pytest.param("kill", 1, [(6, "memory", 7)] * 2, "", marks=pytest.mark.exhaustive),
        pytest.param(
            "damage", 1, [(4, "path", 5)] * 2, "that of process 1 is in no host's memory", marks=pytest.mark.exhaustive
        ),
        ("host", 2, [(6, "memory", 7), (6, "peer", 7)], ""),
        ("keeper", 1, [(None, "", 0)] * 2, "the process that gives .* back at the end of the job is gone"),
    ],
)
def test_a_run_goes_on_after_a_loss(
    what: str, hosts: int, expected: list[tuple[int, str, int]], said: str, tmp_path: Path
) -> None:
    found = torchrun(tmp_path, what, hosts)
    # Agents may change their numbers: who was process 1 is process 0 then, and finds its state at the other.
    assert sorted((each["step"], each["from"], each["next"]) for each in found) == expected
    told = [each for process in found for each in process["said"]]
    assert bool(said) == bool(told) and re.search(said, " ".join(told))
