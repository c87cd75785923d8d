"""What the engine borrows of xprof, the viewer of profiles, where it is installed: its client to profiler servers."""

import importlib
from typing import Any

_MODULE = "xprof.convert._pywrap_profiler_plugin"


def request_profile(address: str, folder: str, milliseconds: int, attempts: int, options: dict[str, int]) -> None:
    """Lets the profiler server at `address` take a profile and writes it below `folder`. Waits for its end.

    Raises `ImportError` without xprof, and `RuntimeError` if no server answers or nothing happened in that time.
    """
    # Not imported with us: it is another program's size, and nobody needs it to run a model.
    client: Any = importlib.import_module(_MODULE)
    client.trace(address, folder, "", False, milliseconds, attempts, options)
