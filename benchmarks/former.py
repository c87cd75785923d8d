"""Compares a step of training with that of PyTorch/XLA 2.x, which has an environment of its own.

    python -m benchmarks.former PYTHON [--workloads mlp,gpt2_like] [--rounds 5] [--write docs/benchmarks.md]

The same models and steps (forward, loss, backward, AdamW, `torch_xla.sync()`) in two processes that take turns: one has
this package, the other that of the interpreter `PYTHON` (`pip install torch==2.9.0 torch_xla==2.9.0 numpy`). A ratio is
the median of the turns' ratios.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine, page
from benchmarks.models import WORKLOADS

HEADING = "## PyTorch/XLA 2.9"
COLUMN = "PyTorch/XLA 2.9"
HERE = Path(__file__).parent
SECONDS_PER_TURN = 0.6


class Side:
    """A process that trains the models with the `torch_xla` of its interpreter, when it is asked."""

    def __init__(self, python: str, path: str) -> None:
        # This process's settings for devices and paths do not apply to the other package.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PJRT_", "XLA_"))}
        environment |= {"PYTHONPATH": path, "PJRT_DEVICE": "CPU"}
        self.process = subprocess.Popen(
            [python, "-W", "ignore", "-P", str(HERE / "former_side.py"), str(machine.CORES)],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.package, self.torch = self._answer()

    def ask(self, question: str) -> Any:
        """The answer to a line such as `timed mlp 50`."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise RuntimeError("The other environment's process ended; it said why above.")
        return json.loads(line)


@contextmanager
def side(python: str, *folders: Path) -> Iterator[Side]:
    """A side with only the benchmarks and `folders` on its path."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "benchmarks").symlink_to(HERE)
        made = Side(python, os.pathsep.join([place, *map(str, folders)]))
        try:
            yield made
        finally:
            made.close()


def measured(sides: list[Side], name: str, rounds: int) -> list[list[float]]:
    """Milliseconds of a step by side, in every turn."""
    counts = [min(50, max(3, round(SECONDS_PER_TURN * 1e3 / each.ask(f"timed {name} 2")))) for each in sides]
    found: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for times, each, count in zip(found, sides, counts, strict=True):
            times.append(each.ask(f"timed {name} {count}"))
    return found


def rows(python: str, names: list[str], rounds: int) -> tuple[list[list[str]], str]:
    """The table's rows, and which releases the other side has."""
    # This package comes from where this process has it.
    with side(python) as former, side(sys.executable, HERE.parent) as ours:
        found = []
        for name in names:
            before, now = measured([former, ours], name, rounds)
            ratio = median(b / a for a, b in zip(before, now, strict=True))
            found.append([WORKLOADS[name].title, f"{median(before):.1f}", f"{median(now):.1f}", f"{ratio:.2f}"])
            print(" | ".join(found[-1]), file=sys.stderr)
        return found, f"torch_xla {former.package} with torch {former.torch}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="an interpreter whose environment has PyTorch/XLA 2.x")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"some of {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, help="a Markdown file: the table becomes a section of it")
    args = parser.parse_args()
    machine.confine()
    with machine.watched() as disturbance:
        found, releases = rows(args.python, args.workloads.split(","), args.rounds)
    text = page.table(["model", f"{COLUMN}, ms", "recorded, ms", f"recorded / {COLUMN}"], found)
    told = f"Against {releases}, on {date.today()}."
    page.publish(args.write, HEADING, "former PYTHON", __doc__, told, text, disturbance=disturbance)


if __name__ == "__main__":
    main()
