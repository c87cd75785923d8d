"""What the same command used the last time is loaded before it is asked for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torch_xla._engine.compile import disk, foresight


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(foresight, "_note", lambda: "command.used")
    monkeypatch.setattr(foresight, "_used", [])
    monkeypatch.setattr(foresight, "_coming", {})
    return tmp_path


def load(path: Path, device: str) -> str:
    if path.name == "broken":
        raise ValueError(path)
    return f"{path.name} on {device}"


def test_what_was_used_is_loaded_once_and_for_one_device(place: Path) -> None:
    for name in ("a", "b", "a"):
        foresight.note(place, name, disk._write)
    assert json.loads((place / "command.used").read_text()) == ["a", "b"]
    foresight.begin(place, "xla:0", load)
    assert foresight.take("b", "xla:1") is None
    assert [foresight.take(name, "xla:0") for name in ("b", "a", "a", "c")] == ["b on xla:0", "a on xla:0", None, None]


def test_a_file_that_cannot_be_loaded_is_left_to_whoever_asks_for_it(place: Path) -> None:
    foresight.note(place, "broken", disk._write)
    foresight.note(place, "whole", disk._write)
    foresight.begin(place, "xla:0", load)
    assert foresight.take("broken", "xla:0") is None
    assert foresight.take("whole", "xla:0") == "whole on xla:0"


def test_a_damaged_note_and_a_folder_that_may_not_be_written_are_no_failure(place: Path) -> None:
    foresight.note(place, "a", None)
    assert not (place / "command.used").exists()
    (place / "command.used").write_text('{"no": "list"')
    foresight.begin(place, "xla:0", load)
    assert foresight.take("a", "xla:0") is None


PROGRAM = """
import torch, torch_xla
from torch_xla._engine.compile import foresight
x = torch.ones(64, 64).to("xla")
coming = len(foresight._coming)
torch.linalg.svdvals(x).cpu()
print(coming, len(foresight._coming))
"""


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
