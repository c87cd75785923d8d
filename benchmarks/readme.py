"""Puts five figures of the benchmarks' page into the README, with the day they were measured.

    python -m benchmarks.readme

`python -m benchmarks.everything` measures them and calls this; `python -m benchmarks.former` those of PyTorch/XLA 2.9,
which are left out until it did. The day is today if the page has changed since it was committed, else that of the
commit; the other package's figures have a day of their own.
"""

import datetime
import re
import subprocess
from pathlib import Path

from benchmarks import former
from benchmarks.page import section, table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
SHOWN = ("GPT-2-like", "BERT-like", "Llama-like", "ResNet-18-like", "MLP")
COLUMNS = ("eager, ms", "inductor, ms", "recorded, ms", "replayed, ms", "JAX, ms")
PLACE = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)


def rows(page: str) -> list[list[str]]:
    """Return the models in the README, with the times of `COLUMNS` in the page's first table."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    header = next(line for line in lines if "eager, ms" in line)
    places = [header.index(column) for column in COLUMNS]
    others = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+) \|", section(page, former.HEADING), re.MULTILINE))
    found = []
    for name in SHOWN:
        line = next(line for line in lines[lines.index(header) :] if line[0].startswith(name))
        found.append([line[0], *(line[place] for place in places), *([others.get(line[0], "–")] if others else [])])
    return found


def shown(page: str) -> str:
    """The README's table, as the page has the figures."""
    columns = [column.removesuffix(", ms") for column in COLUMNS]
    other = [former.COLUMN] if section(page, former.HEADING) else []
    return table(["a step of training, ms", *columns, *other], rows(page)) + "\n"


def told(page: str, day: str) -> str:
    """When and on what it was measured."""
    of_the_other = re.search(r", on (\d{4}-\d\d-\d\d)\.", section(page, former.HEADING))
    then = f"; {former.COLUMN} on {of_the_other[1]}" if of_the_other and of_the_other[1] != day else ""
    return f"Measured on two cores of a CPU, {day}{then}: [how, and the rest](docs/benchmarks.md).\n"


def git(*arguments: str) -> str:
    command = ["git", *arguments, "--", str(PAGE)]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> None:
    day = str(datetime.date.today()) if git("status", "--porcelain") else git("log", "-1", "--format=%cs")
    page = PAGE.read_text()
    README.write_text(PLACE.sub(lambda _: f"{shown(page)}\n{told(page, day)}", README.read_text()))


if __name__ == "__main__":
    main()
