"""Measure the effect of a change: this checkout against another commit, in turns on the same machine.

Each side is a persistent process with the package and the benchmarks of its own checkout. Both measure in turns, so
that both see the same noise. First steps and memory are measured in new processes, in turns too.

    python -m benchmarks.before 3c01aef                 # all rows, in about ten minutes of an idle machine
    python -m benchmarks.before main --only add,encoder --rounds 3
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]

# The measurements, by their name for `--only`, with their unit.
ROWS = {
    "add": ("`a + b`, recorded", "µs"),
    "new": ("four operations on a tensor of a new size and the sum read, by the clock of the thread", "ms"),
    "new_everywhere": ("the same by the clock of the process, XLA's threads with it", "ms"),
    "record": ("a training step of the encoder, recorded", "ms"),
    "encoder": ("a training step of the encoder", "ms"),
    "gpt2_like": ("a training step of the GPT-2-like model", "ms"),
    "resnet_like": ("a training step of the ResNet-like model", "ms"),
    "replay": ("host time of a replayed step of the encoder", "ms"),
    "unqueued": ("the same without its time in the queue for a core, which the device's threads decide", "ms"),
    "thread": ("the same by the clock of its thread", "ms"),
    "replayed": ("a replayed step of the encoder", "ms"),
    "first": ("the first four steps of the encoder", "s"),
    "memory": ("peak memory of four steps of the GPT-2-like model", "MiB"),
}
OF_NEW_PROCESSES = ("first", "memory")
# A ratio beyond this is marked.
ALLOWED = 1.03


class Side:
    """One checkout, and a process that measures in it when it is asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process = self._start("serve")

    def measure(self, row: str) -> float:
        """One measurement."""
        if row in OF_NEW_PROCESSES:
            process = self._start(row)
            answer = process.communicate()[0]
        else:
            process = self.process
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{row}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{row} failed in {self.root}; its process said why above")
        return float(json.loads(answer))

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _start(self, what: str) -> "subprocess.Popen[str]":
        environment = os.environ | {"PYTHONPATH": str(self.root), "XLA_PERSISTENT_CACHE_PATH": ""}
        command = [sys.executable, str(ROOT / "benchmarks" / "before_side.py"), what]
        pipe: Any = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.root, env=environment, text=True, stdin=pipe, stdout=pipe)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(root), commit], check=True)
        try:
            yield root
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True)


def table(commit: str, rows: list[str], rounds: int) -> str:
    """Medians of both sides and of their ratio within a turn, as Markdown."""
    lines = [f"| | {commit} | now | ratio |", "| --- | --: | --: | --: |"]
    with checkout(commit) as root:
        before, after = Side(root), Side(ROOT)
        for row in rows:
            found: list[tuple[float, float]] = []
            for turn in range(rounds + 1):
                pair = {side: side.measure(row) for side in ((before, after) if turn % 2 else (after, before))}
                found.append((pair[before], pair[after]))
            settled = found[1:]  # the first turn compiles
            was, now = (median(each) for each in zip(*settled, strict=True))
            ratio = median(b / a for a, b in settled)
            title, unit = ROWS[row]
            mark = " **over**" if ratio > ALLOWED else ""
            lines.append(f"| {title} | {was:.3g} {unit} | {now:.3g} {unit} | {ratio:.3f}{mark} |")
            print(lines[-1], flush=True)
        before.close()
        after.close()
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("commit", help="what this checkout is compared with")
    parser.add_argument("--only", default=",".join(ROWS), help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    print(table(chosen.commit, chosen.only.split(","), chosen.rounds))


if __name__ == "__main__":
    main()
