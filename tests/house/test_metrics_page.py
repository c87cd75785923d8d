"""Check that docs/diagnostics.md lists the metrics and counters that the engine has, and no other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "diagnostics.md").read_text()
PRESENT, ABSENT = PAGE.partition("\n## Counters and metrics\n")[2].split("### What PyTorch/XLA counts")
SOURCE = "\n".join(path.read_text() for path in sorted((ROOT / "torch_xla").rglob("*.py")))
MADE = sorted(
    set(re.findall(r'(?:\b|_)(?:count|counter|metric|timed|Total)\(\s*"(\w+)"', SOURCE)) - {"values", "buffers"}
)


def named(page: str) -> list[str]:
    """The names in the first column of the tables."""
    rows = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_the_engine_has_many() -> None:
    assert len(MADE) > 20 and {"CompileTime", "MarkStep"} <= set(MADE)


@pytest.mark.parametrize("name", MADE)
def test_what_is_counted_is_on_the_page(name: str) -> None:
    assert name in named(PRESENT), f"docs/diagnostics.md has no row for {name}"


@pytest.mark.parametrize("name", named(PRESENT))
def test_what_the_page_promises_is_counted(name: str) -> None:
    assert f'"{name}"' in SOURCE, f"docs/diagnostics.md has {name}, which nothing counts"


@pytest.mark.parametrize("name", named(ABSENT))
def test_what_is_not_counted_is_not_made(name: str) -> None:
    assert name not in MADE
