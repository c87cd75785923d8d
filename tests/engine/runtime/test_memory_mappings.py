"""Whether mappings are scarce follows from the system's table of them, which is not read for every program."""

from pathlib import Path

import pytest
import torch

from torch_xla._engine.runtime import memory_mappings

CODE = "7f0000000000-7f0000001000 r-xp 00000000 00:00 0 \n"
DATA = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory_mappings, "_unseen", 0)
    monkeypatch.setattr(memory_mappings, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(memory_mappings, "_LIMIT", tmp_path / "limit")
    (tmp_path / "limit").write_text("1200\n")
    return tmp_path / "maps"


@pytest.mark.parametrize(
    ("code", "data", "scarce"), [(100, 100, False), (90, 600, False), (110, 400, False), (110, 500, True)]
)
def test_they_are_scarce_where_programs_take_many_of_many(table: Path, code: int, data: int, scarce: bool) -> None:
    table.write_text(CODE * code + DATA * data)
    assert memory_mappings.are_scarce() is scarce


def test_the_table_is_read_as_often_as_programs_may_fill_it(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_mappings, "_OF_A_PROGRAM", 400)
    table.write_text(CODE)
    assert not memory_mappings.are_scarce()
    table.write_text(CODE * 1000)
    assert [memory_mappings.are_scarce() for _ in range(5)] == [False, False, True, False, True]


def test_nothing_is_known_where_the_system_tells_nothing(table: Path) -> None:
    assert not table.exists() and not memory_mappings.are_scarce()
    table.write_text(CODE * 1000)
    assert not memory_mappings.are_scarce()


def test_compiled_programs_are_counted() -> None:
    """The table of this process has lines of the form that is looked for."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("a table of Linux")
    torch.ones(3, device="xla").sin().sum().item()
    assert memory_mappings._CODE in Path("/proc/self/maps").read_bytes()
