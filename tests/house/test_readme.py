"""Check README.md (its code prints what it shows, its links exist, it is short) and the map of rooms."""

import re
import subprocess
import sys

import pytest

from benchmarks import readme
from tests.house.source import ENGINE, ROOT

README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_first_program_prints_what_is_shown() -> None:
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)
    assert found, "README.md has no python block that its output follows"
    result = subprocess.run([sys.executable, "-W", "error", "-c", found[1]], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert float(result.stdout) == pytest.approx(float(found[2]), rel=1e-2)


def test_its_links_lead_somewhere() -> None:
    for path in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README):
        assert (ROOT / path).exists(), f"README.md links to {path}, which does not exist"


def test_its_figures_are_those_of_the_benchmarks() -> None:
    expected = readme.shown(readme.PAGE.read_text())
    assert expected in README, "`python -m benchmarks.readme` puts the benchmarks' figures into README.md"


def test_it_is_read_in_two_minutes() -> None:
    assert len(README.split()) <= 800, "move what a user needs second to a page that README.md links to"


def test_the_map_shows_every_room() -> None:
    rooms = {path.parent.name for path in ENGINE.glob("*/__init__.py")}
    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = set(re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE))
    assert shown == rooms, f"docs/architecture.md shows {sorted(shown)}; there are {sorted(rooms)}"
