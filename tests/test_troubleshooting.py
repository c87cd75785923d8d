"""The troubleshooting guide is correct: its files are written, its commands run, and they print the shown output.

A `python` block with `file=` is that file. In a `console` block the lines after `$` are commands, the others their
output: `…` matches anything, alone in a line any lines; hashes, our line numbers and numbers with a point may differ.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
FILE = re.compile(r"^```python file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)

COMMANDS = [command for block in CONSOLE.findall(PAGE.read_text()) for command in COMMAND.findall(block)]


def pattern_of(shown: str) -> str:
    lines = []
    for line in shown.splitlines():
        if line == "…":
            lines.append(r"(?:.*\n)*")
            continue
        words = re.sub(r"(\\ )+", "[ ]+", re.escape(line)).replace("…", ".*")
        words = re.sub(r"__init__\\.py:\d+", r"__init__\\.py:\\d+", words)
        words = re.sub(r"\b[0-9a-f]{32}\b", "[0-9a-f]{32}", words)
        lines.append(re.sub(r"\d+\\\.\d+(?=\\? ?(s|MB)?\b)", r"[0-9]+[.][0-9]+", words) + r"\n")
    return "".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=lambda text: text.partition("\n")[0][:60])
def test_a_command_prints_what_the_guide_shows(command: str, shown: str, tmp_path: Path) -> None:
    for name, code in FILE.findall(PAGE.read_text()):
        (tmp_path / name).write_text(code)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "XLA_PERSISTENT_CACHE_PATH": ""}
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, timeout=300
    )
    printed = done.stdout.rstrip("\n") + "\n"
    assert re.fullmatch(pattern_of(shown), printed), f"{PAGE.name} shows\n{shown}\nbut `{command}` prints\n{printed}"


def test_every_file_of_the_guide_is_used() -> None:
    used = " ".join(command for command, _ in COMMANDS)
    assert all(name in used for name, _ in FILE.findall(PAGE.read_text()))
    assert len(COMMANDS) >= 10


def test_the_picture_of_the_guide_is_there() -> None:
    for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", PAGE.read_text()):
        assert (PAGE.parent / name).read_text().startswith("<svg ")
