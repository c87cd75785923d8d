"""Puts five figures of the benchmarks' page into the README, with the day they were measured.

    python -m benchmarks.readme

`python -m benchmarks.everything` measures them and calls this. The day is today if the page has changed since it was
committed, else that of the commit.
"""

import datetime
import re
import subprocess
from pathlib import Path

from benchmarks.page import table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
SHOWN = ("GPT-2-like", "BERT-like", "Llama-like", "ResNet-18-like", "MLP")
COLUMNS = ("eager, ms", "inductor, ms", "recorded, ms", "replayed, ms", "JAX, ms")
PLACE = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)


def rows(page: str) -> list[list[str]]:
    """The models that the README shows, with the times of `COLUMNS` as they stand in the page's first table."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    header = next(line for line in lines if "eager, ms" in line)
    places = [header.index(column) for column in COLUMNS]
    found = []
    for name in SHOWN:
        line = next(line for line in lines[lines.index(header) :] if line[0].startswith(name))
        found.append([line[0], *(line[place] for place in places)])
    return found


def shown(page: str) -> str:
    return table(["a step of training, ms", *(column.removesuffix(", ms") for column in COLUMNS)], rows(page)) + "\n"


def git(*arguments: str) -> str:
    command = ["git", *arguments, "--", str(PAGE)]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> None:
    day = str(datetime.date.today()) if git("status", "--porcelain") else git("log", "-1", "--format=%cs")
    told = f"\nMeasured on two cores of a CPU, {day}: [how, and the rest](docs/benchmarks.md).\n"
    README.write_text(PLACE.sub(lambda _: shown(PAGE.read_text()) + told, README.read_text()))


if __name__ == "__main__":
    main()
