"""The client of xprof, the viewer of profiles, for profiler servers, where it is installed."""

import importlib
from typing import Any

_MODULE = "xprof.convert._pywrap_profiler_plugin"


def request_profile(address: str, folder: str, milliseconds: int, attempts: int, options: dict[str, int]) -> None:
    """Ask the profiler server at `address` for a profile, wait for it, and write it below `folder`.

    Raises `ImportError` without xprof, and `RuntimeError` if no server answers or nothing happened in that time.
    """
    # Imported on demand: it is large, and running a model does not need it.
    client: Any = importlib.import_module(_MODULE)
    client.trace(address, folder, "", False, milliseconds, attempts, options)
