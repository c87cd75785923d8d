"""The code in the README runs, and its map shows the rooms that exist."""

import re
import subprocess
import sys

from tests.house.source import ENGINE, ROOT

README = (ROOT / "README.md").read_text()


def test_the_first_program_runs_as_it_stands() -> None:
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found, "README.md has no python block"
    result = subprocess.run([sys.executable, "-W", "error", "-c", found[1]], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    float(result.stdout)


def test_the_map_shows_every_room() -> None:
    rooms = {path.parent.name for path in ENGINE.glob("*/__init__.py")}
    shown = set(re.findall(r"^\| `(\w+)/` \|", README, re.MULTILINE))
    assert shown == rooms, f"README.md shows {sorted(shown)}; there are {sorted(rooms)}"
