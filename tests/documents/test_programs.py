"""Programs as the documents of PyTorch/XLA write them run here: `programs.md` is the table."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.house.source import ROOT

TABLE = Path(__file__).with_name("programs.md")
BLOCK = re.compile(r"^## (.+?)\n\n```python ?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Runs the blocks of one kind one after another, in the given number of processes.
RUNNER = """
import sys
import torch_xla
from tests.documents.test_programs import programs

def run(index):
    for name, code in programs(sys.argv[1]):
        try:
            exec(compile(code, name, "exec"), {"__name__": "program"})
        except BaseException as error:
            error.add_note(f"in the program of {name!r}")
            raise
    if not index:
        print("all ran")

if __name__ == "__main__":
    torch_xla.launch(run) if sys.argv[1] == "processes" else run(0)
"""


def programs(kind: str) -> list[tuple[str, str]]:
    return [(name, code) for name, found, code in BLOCK.findall(TABLE.read_text()) if found == kind]


def test_no_block_is_left_out() -> None:
    assert sum(len(programs(kind)) for kind in ("", "slow", "processes", "mesh")) == TABLE.read_text().count(
        "```python"
    )


ALONE = [
    pytest.param(name, code, id=name, marks=[pytest.mark.slow] if kind else [])
    for kind in ("", "slow")
    for name, code in programs(kind)
]


@pytest.mark.parametrize(("name", "code"), ALONE)
def test_a_program_of_one_device_runs(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("program")
    monkeypatch.setitem(sys.modules, "program", module)  # PyTorch 2.11's Dynamo imports what a function is of
    exec(compile(code, name, "exec"), vars(module))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "devices"), [("processes", 4), ("mesh", 4)])
def test_programs_of_several_devices_run(kind: str, devices: int, tmp_path: Path) -> None:
    runner = tmp_path / "runner.py"
    runner.write_text(RUNNER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CPU_NUM_DEVICES": str(devices), "PJRT_DEVICE": "CPU"}
    done = subprocess.run(
        [sys.executable, str(runner), kind], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "all ran" in done.stdout
