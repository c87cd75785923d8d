"""Enter `xla` in lists of device types that other libraries keep, when they are imported.

A library without a list needs no entry; docs/frameworks.md names what is entered.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def _name_backend(module: ModuleType) -> None:
    """Tell Transformers which backend of `torch.distributed` serves `xla`."""
    backends = getattr(module, "DISTRIBUTED_BACKEND_MAP", None)
    if isinstance(backends, dict):
        backends.setdefault("xla", "xla")


# By the module that has the list.
_ENTRIES: dict[str, Callable[[ModuleType], None]] = {"transformers.distributed.utils": _name_backend}


class _Finder:
    """Finds a module as Python does, and has its list completed once it has run."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name not in _ENTRIES or self not in sys.meta_path:
            return None
        place = sys.meta_path.index(self)
        sys.meta_path.remove(self)  # to ask the others
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(place, self)
        loader: Any = spec and spec.loader
        if loader is not None and hasattr(loader, "exec_module"):
            run = loader.exec_module

            def run_and_enter(module: ModuleType) -> None:
                run(module)
                _ENTRIES[name](module)

            loader.exec_module = run_and_enter
        return spec


_finder = _Finder()


def complete() -> None:
    """Complete the lists of libraries that are imported, and of those that will be."""
    for name, enter in _ENTRIES.items():
        if name in sys.modules:
            enter(sys.modules[name])
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
