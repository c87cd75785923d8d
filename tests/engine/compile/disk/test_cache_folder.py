"""The folder of executables: which one it is, and how files come into it."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torch_xla._engine.compile.disk import cache_folder
from torch_xla._engine.compile.disk.executable_format import Unreadable


@pytest.fixture(autouse=True)
def follow_the_settings() -> Iterator[None]:
    yield
    cache_folder.choose(None)


def test_the_program_chooses_over_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "~/kept")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder.folder() == tmp_path / "kept" and not cache_folder.is_read_only()
    cache_folder.choose(str(tmp_path / "other"), read_only=True)
    assert cache_folder.folder() == tmp_path / "other" and cache_folder.is_read_only()
    cache_folder.choose("")
    assert cache_folder.folder() is None
    cache_folder.choose(None)
    assert cache_folder.folder() == tmp_path / "kept"


def test_only_an_address_has_a_store_behind_its_folder(tmp_path: Path) -> None:
    cache_folder.choose(str(tmp_path))
    assert cache_folder.store_behind() is None
    cache_folder.choose("memory://programs")
    store = cache_folder.store_behind()
    assert store is not None and store.address == "memory://programs"


def test_many_writers_and_readers_never_see_half_a_file(tmp_path: Path) -> None:
    path, data = tmp_path / "folder" / "one.xla", bytes(range(256)) * 256
    cache_folder.write(path, data)
    ends = time.monotonic() + 0.5

    def write(_: int) -> bool:
        while time.monotonic() < ends:
            cache_folder.write(path, data)
        return True

    def read(_: int) -> bool:
        while time.monotonic() < ends:
            assert path.read_bytes() == data
        return True

    with ThreadPoolExecutor(6) as pool:
        work: list[Callable[[int], bool]] = [write, read] * 3
        assert all(pool.map(lambda each: each(0), work))
    assert [each.name for each in path.parent.iterdir()] == ["one.xla"]


def test_a_damaged_executable_is_not_adopted(tmp_path: Path) -> None:
    with pytest.raises(Unreadable):
        cache_folder.adopt(tmp_path, "one.xla", b"damaged")
    cache_folder.adopt(tmp_path, "one.xla.numbers", b"[1]")
    assert [each.name for each in tmp_path.iterdir()] == ["one.xla.numbers"]


def test_clearing_deletes_those_for_topologies_too(tmp_path: Path) -> None:
    for name in ("one.xla", f"{cache_folder.TOPOLOGIES}/two.xla"):
        cache_folder.write(tmp_path / name, b"x")
    cache_folder.clear(tmp_path)
    assert not list(tmp_path.rglob("*.xla"))
