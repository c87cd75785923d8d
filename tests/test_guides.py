"""The programs in the guides run unchanged, and print the output in the guides.

The `python` blocks of a page are one program, called `train.py`. The `text` block after it is its output: numbers with
a point and repeated spaces may differ; `…` matches anything.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from tests.support import forked

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "-- next block --"


def blocks_of(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


GUIDES = [
    page for page in sorted((ROOT / "docs").glob("*.md")) if {"python", "text"} <= {kind for kind, _ in blocks_of(page)}
]
# Their programs compile much, or start processes: `make test-slow` runs them.
LONG = {
    "add_an_op", "compiled_modes", "control_flow", "diagnostics", "export", "few_bits", "from_jax", "kernels",
    "memory_by_choice", "planning", "spmd", "survive", "troubleshooting",
}  # fmt: skip


# It shows how many values XLA has in memory at once, which newer releases decide otherwise.
OF_OLD_JAX = {"planning"} if jax.__version_info__ >= (0, 11) else set()


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    other = pytest.mark.skip("the page shows what XLA plans in JAX 0.10")
    return [pytest.mark.slow] * (page.stem in LONG) + [other] * (page.stem in OF_OLD_JAX)


def pattern_of(shown: str) -> str:
    """Return a pattern for the output that a guide shows."""
    words = re.escape(shown.rstrip())
    words = words.replace("…", ".*")
    words = re.sub(r"(\\ )+", r"[ ]+", words)
    # A sign too, and a time that has fewer digits elsewhere.
    return re.sub(r"(\\-)?\d+\\\.\d+", r"-?[0-9]+[.][0-9]+(e-[0-9]+)?", words)


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.mark.parametrize("page", [pytest.param(page, marks=marks_of(page), id=page.name) for page in GUIDES])
def test_a_guide_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    blocks = blocks_of(page)
    program = "".join(f"{code}print({MARK!r})\n" for kind, code in blocks if kind == "python")
    (tmp_path / "train.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if "os.environ" in program:  # before it imports the package
        command = [sys.executable, "-W", "error", "train.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    else:
        done = forked.run("train.py", environment=environment, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(f"{MARK}\n")
    place = -1
    for kind, body in blocks:
        if kind == "python":
            place += 1
            continue
        output = printed[place].replace(f"{tmp_path}{os.sep}", "")
        for shown, line in zip(lines_of(body), lines_of(output), strict=True):
            assert re.fullmatch(pattern_of(shown), line), f"{page.name} shows\n  {shown}\nbut it prints\n  {line}"
