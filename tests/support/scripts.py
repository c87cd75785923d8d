"""The examples, run as a user runs them, with small settings."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(example: str, *options: str) -> str:
    """Return the output of an example; fail with its errors if it misses one of its own bounds."""
    command = [sys.executable, str(ROOT / "examples" / example), "--fast", *options]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout
