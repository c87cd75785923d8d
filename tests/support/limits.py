"""A limit of time for what waits for another process, so that one which hangs fails its test.

A test that hangs for another reason ends its worker after `faulthandler_timeout` (pyproject.toml), and the run goes on.
"""

import functools
import subprocess
from typing import Any

# More than the slowest example takes on a loaded machine; less than a test may take altogether.
SECONDS = 600

_communicate = subprocess.Popen.communicate


@functools.wraps(_communicate)
def _limited(process: subprocess.Popen[Any], input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
    try:
        return _communicate(process, input, SECONDS if timeout is None else timeout)
    except subprocess.TimeoutExpired:
        if timeout is None:
            process.kill()  # or the end of a `with` block waits for it
        raise


def limit_subprocesses() -> None:
    """Let `subprocess.run` and `Popen.communicate` of this process give up after `SECONDS` by default."""
    subprocess.Popen.communicate = _limited  # type: ignore[method-assign]
