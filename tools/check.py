"""The one check before a commit: format, lint, types. Run by `make check`, by `make test` and by pre-commit."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

CHECKS = {
    "format": ["ruff", "format", "--check"],
    "lint": ["ruff", "check"],
    "types of the engine": ["mypy"],
}
FIXES = {
    "fix": ["ruff", "check", "--fix"],
    "reformat": ["ruff", "format"],
}


def passes(name: str, command: list[str]) -> bool:
    """Runs one command; its output shows only if it finds something."""
    print(f"{name} ... ", end="", flush=True)
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(f"{'FAILED' if result.returncode else 'ok'} ({time.monotonic() - start:.1f} s)")
    if result.returncode:
        print(result.stdout)
    return result.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fix", action="store_true", help="format, and fix what the linter can")
    steps = {**(FIXES if parser.parse_args().fix else {}), **CHECKS}
    return 0 if all([passes(name, command) for name, command in steps.items()]) else 1


if __name__ == "__main__":
    sys.exit(main())
