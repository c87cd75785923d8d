"""The limit of a folder of executables."""

import os
import time
from pathlib import Path

import pytest

from torch_xla._engine.compile.disk import folder_limit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of four files of 100 bytes, each used later than the one before."""
    for index in range(4):
        path = tmp_path / f"{index}.xla"
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + index, 1000 + index))
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_least_recently_used_leave_a_full_folder(folder: Path) -> None:
    (folder / ".writing.part").write_bytes(b"another process is at it")
    assert folder_limit.shrink(folder, 300) == 224
    assert names(folder) == [".writing.part", "2.xla", "3.xla"] and folder_limit.size_of(folder) == 224


def test_what_a_killed_process_left_is_deleted(folder: Path) -> None:
    part = folder / ".killed.part"
    part.write_bytes(bytes(10))
    os.utime(part, (time.time() - 2 * folder_limit._ABANDONED,) * 2)
    assert folder_limit.shrink(folder, 1000) == 400 and not part.exists()


def test_room_is_made_for_what_fits_within_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_SIZE", str(450 / 2**20))
    assert not folder_limit.make_room(folder, 451) and len(names(folder)) == 4
    assert folder_limit.make_room(folder, 200) and names(folder) == ["2.xla", "3.xla"]
