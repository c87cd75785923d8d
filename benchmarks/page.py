"""The page in the documents that the benchmarks write: each one owns a section and replaces it."""

import re
from pathlib import Path

TITLE = "# Benchmarks"


def put(page: Path, heading: str, text: str) -> None:
    """Puts `text` below `heading` ("## …") of the page, in the place of what was there, or at its end."""
    before = page.read_text() if page.exists() else f"{TITLE}\n"
    section = f"{heading}\n\n{text.strip()}\n\n"
    found = re.search(rf"^{re.escape(heading)}$.*?(?=^## |\Z)", before, re.MULTILINE | re.DOTALL)
    if found:
        after = f"{before[: found.start()]}{section}{before[found.end() :]}"
    else:
        after = f"{before.rstrip()}\n\n{section}"
    page.write_text(f"{after.rstrip()}\n")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = [f"| {' | '.join(header)} |", "|---|" + "--:|" * (len(header) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
