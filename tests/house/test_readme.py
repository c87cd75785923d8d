"""The code in the README runs, and it fits on a screen; the map of the architecture shows the rooms that exist."""

import re
import subprocess
import sys

import pytest

from benchmarks import readme
from tests.house.source import ENGINE, ROOT

README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_first_program_runs_as_it_stands() -> None:
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found, "README.md has no python block"
    result = subprocess.run([sys.executable, "-W", "error", "-c", found[1]], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    float(result.stdout)


def test_its_figures_are_those_of_the_benchmarks() -> None:
    expected = readme.shown(readme.PAGE.read_text())
    assert expected in README, "`python -m benchmarks.readme` puts the benchmarks' figures into README.md"


def test_it_fits_on_a_screen() -> None:
    assert len(README.splitlines()) <= 55, "what a user needs second goes to a page that README.md names"


def test_the_map_shows_every_room() -> None:
    rooms = {path.parent.name for path in ENGINE.glob("*/__init__.py")}
    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = set(re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE))
    assert shown == rooms, f"docs/architecture.md shows {sorted(shown)}; there are {sorted(rooms)}"
