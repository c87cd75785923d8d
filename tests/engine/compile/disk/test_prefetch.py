"""Executables that the same command used the last time are loaded in advance."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torch_xla._engine.compile.disk import cache_folder, prefetch

A, B, C, BROKEN = (f"{letter * 32}-{'0' * 16}.xla" for letter in "abcd")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prefetch, "_note", lambda: "command.used")
    monkeypatch.setattr(prefetch, "_used", [])
    monkeypatch.setattr(prefetch, "_coming", {})
    return tmp_path


def load(path: Path, device: str) -> str:
    if path.name == BROKEN:
        raise ValueError(path)
    return f"{path.name} on {device}"


def test_what_was_used_is_loaded_once_and_for_one_device(place: Path) -> None:
    for name in (A, B, A):
        prefetch.note(place, name)
    assert json.loads((place / "command.used").read_text()) == [A, B]
    prefetch.begin(place, "xla:0", load)
    assert prefetch.take(B, "xla:1") is None
    assert [prefetch.take(name, "xla:0") for name in (B, A, A, C)] == [f"{B} on xla:0", f"{A} on xla:0", None, None]


def test_a_file_that_cannot_be_loaded_raises_where_it_is_asked_for(place: Path) -> None:
    prefetch.note(place, BROKEN)
    prefetch.note(place, A)
    prefetch.begin(place, "xla:0", load)
    assert prefetch.take(BROKEN, "xla:0") is None
    assert prefetch.take(A, "xla:0") == f"{A} on xla:0"


def test_a_damaged_note_and_a_folder_that_may_not_be_written_are_no_failure(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(cache_folder, "is_read_only", lambda: True)
        prefetch.note(place, A)
    assert not (place / "command.used").exists()
    for damaged in (b'{"no": "list"', b'{"no": "list"}', b"\xff\xfe\x00", b"[" * 20_000, b"7", b'["../a", 1, null]'):
        (place / "command.used").write_bytes(damaged)
        prefetch.begin(place, "xla:0", load)
        assert prefetch.take(A, "xla:0") is None and prefetch._coming == {}
        prefetch._used.clear()
        prefetch.note(place, A)
        assert json.loads((place / "command.used").read_text()) == [A]


def test_a_note_leads_nowhere_else(place: Path) -> None:
    (place / "command.used").write_text(json.dumps([f"../{A}", f"{A}/../{B}", "/etc/passwd", B]))
    prefetch.begin(place, "xla:0", load)
    assert list(prefetch._coming) == [(B, "xla:0")]
    prefetch.take(B, "xla:0")


def test_a_note_that_others_may_write_is_not_read(place: Path) -> None:
    prefetch.note(place, A)
    (place / "command.used").chmod(0o666)
    prefetch.begin(place, "xla:0", load)
    assert prefetch._coming == {}


PROGRAM = """
import torch, torch_xla
from torch_xla._engine.compile.disk import disk_cache, prefetch
disk_cache.WORTH_KEEPING_SECONDS = 0.0
x = torch.ones(64, 64).to("xla")
coming = len(prefetch._coming)
torch.linalg.svdvals(x).cpu()
print(coming, len(prefetch._coming))
"""


@pytest.mark.slow
def test_a_second_process_begins_with_what_the_first_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", str(tmp_path / "cache"))
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    told = []
    for _ in range(2):
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
        told.append([int(word) for word in done.stdout.split()])
    first, second = told
    assert first == [0, 0]
    assert second[0] >= 1 and second[1] == 0
