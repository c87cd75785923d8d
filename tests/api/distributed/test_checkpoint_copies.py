"""The copy that a training waits for: into memory that stays, and by several threads."""

import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _copies


def test_room_is_as_large_as_asked() -> None:
    assert [len(_copies.room(size).fill_(1)) for size in (0, 1, 5_000_000)] == [0, 1, 5_000_000]


def test_the_memory_of_a_room_stays_for_what_is_as_large() -> None:
    room = _copies.Room()
    places = []
    for size, value in ((1000, 0), (1000, 1), (3, 2)):
        (copy,) = _copies.copied([np.full(size, value)], room)
        assert copy.shape == (size,) and (copy == value).all()
        places.append(copy.ctypes.data)
    assert places[0] == places[1] and len(room._memory) == 64


@pytest.mark.parametrize("threads", [1, 3])
def test_arrays_of_every_form_are_copied(threads: int) -> None:
    before, values = torch.get_num_threads(), np.random.default_rng(0)
    large = values.standard_normal(3 * _copies._PIECE // 4 + 5, np.float32)
    arrays = [
        large, large[:4096].reshape(64, 64).T, large[:100].astype(ml_dtypes.bfloat16), large[:8].astype(np.complex64),
        np.array(3.0), np.zeros((0, 4)), np.array([True, False]), large[::2],
    ]  # fmt: skip
    for each in arrays:
        each.flags.writeable = False
    torch.set_num_threads(threads)
    try:
        found = _copies.copied(arrays, _copies.Room())
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found, arrays, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)
        assert one.ctypes.data % 64 == 0 and not np.shares_memory(one, other)


def state(value: float) -> dict[str, Any]:
    return {"w": torch.full((50_000,), value).to("xla"), "half": torch.full((3,), value).to("xla", torch.bfloat16)}


def manager_that_tells(
    folder: Path, monkeypatch: pytest.MonkeyPatch, may_write: threading.Event
) -> tuple[CheckpointManager, list[int]]:
    """Return a manager, and where the memory is that it writes."""
    manager, places = CheckpointManager(str(folder), 1, max_pending_async=2, chkpt_on_preemption=False), []
    save = manager._save

    def told(step: int, found: Any) -> None:
        assert may_write.wait(60)
        places.append(next(iter(found["w"].shards.values())).data_ptr())
        save(step, found)

    monkeypatch.setattr(manager, "_save", told)
    return manager, places


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_save_copies_to_the_memory_of_the_save_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()
    may_write.set()
    manager, places = manager_that_tells(tmp_path, monkeypatch, may_write)
    for step in range(4):
        manager.save_async(step, state(step))
        manager.join()
    assert len(set(places)) == 1 and len(places) == 4
    into = state(0)
    for step in range(4):
        manager.restore(step, into)
        assert into["w"].eq(step).all() and into["half"].eq(step).all()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_a_slow_disk_has_not_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()
    manager, places = manager_that_tells(tmp_path, monkeypatch, may_write)
    manager.save_async(1, state(1))
    manager.save_async(2, state(2))
    may_write.set()
    manager.save_async(3, state(3))
    manager.join()
    assert len(set(places)) == 2 and places[0] != places[1]  # the third waited for the first
    into = state(0)
    for step in (1, 2, 3):
        manager.restore(step, into)
        assert into["w"].eq(step).all()
