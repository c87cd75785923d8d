"""Change modules of other libraries as soon as they are imported."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_changes: dict[str, Callable[[ModuleType], None]] = {}


def when_imported(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call `change` with the module `name`: now if it is imported already, and whenever it is imported later."""
    _changes[name] = change
    if name in sys.modules:
        change(sys.modules[name])
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder:
    """Finds a module as Python does, and changes it once it has run."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name not in _changes or self not in sys.meta_path:
            return None
        place = sys.meta_path.index(self)
        sys.meta_path.remove(self)  # to ask the others
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(place, self)
        loader: object = spec and spec.loader
        if loader is not None and hasattr(loader, "exec_module"):
            run = loader.exec_module

            def run_and_change(module: ModuleType) -> None:
                run(module)
                _changes[name](module)

            loader.exec_module = run_and_change
        return spec


_finder = _Finder()
