"""The page in the documents that the benchmarks write: each one owns a section and replaces it."""

import re
from pathlib import Path

from benchmarks import machine

TITLE = "# How fast it is: benchmarks on the CPU"


def section(text: str, heading: str) -> str:
    """Return the section of `heading` ("## …") in the page's text, with the heading, or an empty text."""
    found = re.search(rf"^{re.escape(heading)}$.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def put(page: Path, heading: str, text: str) -> None:
    """Put `text` below `heading` ("## …") of the page, replacing the old section, or at its end."""
    before = page.read_text() if page.exists() else f"{TITLE}\n"
    after = f"{heading}\n\n{text.strip()}\n\n"
    if old := section(before, heading):
        after = before.replace(old, after)
    else:
        after = f"{before.rstrip()}\n\n{after}"
    page.write_text(f"{after.rstrip()}\n")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = [f"| {' | '.join(header)} |", "|---|" + "--:|" * (len(header) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def publish(
    page: Path | None, heading: str, module: str, doc: str, *parts: str, disturbance: machine.Disturbance | None = None
) -> None:
    """Prints `parts` and makes them a section of `page`, if there is one: below the call, and how it measures.

    `doc` is the docstring of `benchmarks.<module>`, whose third paragraph says how.
    """
    text = "\n\n".join(filter(None, [*parts, disturbance.told() if disturbance else ""]))
    print(f"{machine.description()}\n\n{text}")
    if page is not None:
        how = doc.split("\n\n")[2].strip()
        put(page, heading, f"`python -m benchmarks.{module}` on {machine.description()}.\n\n{how}\n\n{text}")
