"""Run the failed tests of one or more runs once more, each alone in a fresh process.

    python tools/retry.py out/ci/quick.json out/ci/slow.json:slow

Each argument is a file that `pytest --failures=FILE` wrote, followed by `:MARK` if the run selected tests by a mark. A
test that passes alone is *sporadic*: it is printed with its first failure. The exit status is 0 if every failed test
is sporadic and there are at most three of them in all. A run that ended otherwise than by failed tests (a usage error,
an error of collection, a signal) is not tried again, and neither is one with more failures than may be sporadic.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

MOST_SPORADIC = 3
TESTS_FAILED = 1  # pytest's exit status


class Run(NamedTuple):
    """The outcome of one run of pytest: its exit status, the texts of failed tests, the mark of selected tests."""

    exit_status: int
    failures: dict[str, str]
    mark: str


def read(argument: str) -> Run:
    """Return the run that `FILE` or `FILE:MARK` names; one without a file was ended before it could write it."""
    name, _, mark = argument.partition(":")
    path = Path(name)
    if not path.exists():
        return Run(-1, {}, mark)
    left = json.loads(path.read_text())
    return Run(left["exit_status"], {each["test"]: each["text"] for each in left["failures"]}, mark)


def passes_alone(test: str, mark: str) -> bool:
    """Run one test in a process of its own, selected as in the run in which it failed."""
    selection = ["-m", mark, "-o", "faulthandler_timeout=1500"] if mark else []
    return subprocess.run([sys.executable, "-m", "pytest", *selection, test], cwd=ROOT).returncode == 0


def verdict(runs: list[Run]) -> str:
    """Return why the failures of `runs` count, or an empty string if each of them is sporadic."""
    for run in runs:
        if run.exit_status not in (0, TESTS_FAILED) or (run.exit_status and not run.failures):
            return f"pytest ended with {run.exit_status} and not by failed tests alone: nothing is tried again"
    failed = [(test, text, run.mark) for run in runs for test, text in run.failures.items()]
    if len(failed) > MOST_SPORADIC:
        return f"{len(failed)} tests failed, and at most {MOST_SPORADIC} may be sporadic: none is tried again"
    for test, _, mark in failed:
        print(f"\n{test} failed; it runs once more, alone", flush=True)
        if not passes_alone(test, mark):
            return f"{test} failed twice"
    for test, text, _ in failed:
        print(f"\nsporadic: {test} passed alone. Its first failure:\n{text}", flush=True)
    return ""


def main() -> int:
    if not sys.argv[1:]:
        sys.exit("usage: python tools/retry.py FILE[:MARK] ...")
    reason = verdict([read(argument) for argument in sys.argv[1:]])
    if reason:
        print(f"\n{reason}", flush=True)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
