"""The one check before a commit: format, lint, types. Run by `make check`, by `make test` and by pre-commit.

`tools/check.py -m pytest` runs the tests as well and looks at the types beside them, which alone leaves a core idle.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

CHECKS = {
    "format": ["ruff", "format", "--check"],
    "lint": ["ruff", "check"],
    "types": ["mypy"],
}
FIXES = {
    "fix": ["ruff", "check", "--fix"],
    "reformat": ["ruff", "format"],
}


TYPES = "types"


def start(command: list[str]) -> subprocess.Popen[str]:
    """A command that runs beside what follows."""
    return subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def passes(name: str, process: subprocess.Popen[str]) -> bool:
    """Waits for a command; its output shows only if it finds something."""
    print(f"{name} ... ", end="", flush=True)
    begin = time.monotonic()
    found, _ = process.communicate()
    print(f"{'FAILED' if process.returncode else 'ok'} ({time.monotonic() - begin:.1f} s)", flush=True)
    if process.returncode:
        print(found, flush=True)
    return process.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fix", action="store_true", help="format, and fix what the linter can")
    parser.add_argument("-m", dest="tests", nargs=argparse.REMAINDER, help="a module that is run, too: pytest")
    options = parser.parse_args()
    steps = {**(FIXES if options.fix else {}), **CHECKS}
    if not options.tests:
        return 0 if all([passes(name, start(command)) for name, command in steps.items()]) else 1
    types = start(steps.pop(TYPES))
    if not all([passes(name, start(command)) for name, command in steps.items()]):
        types.kill()
        return 1
    tests = subprocess.run([sys.executable, "-m", *options.tests], cwd=ROOT).returncode
    return 0 if passes(TYPES, types) and tests == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
