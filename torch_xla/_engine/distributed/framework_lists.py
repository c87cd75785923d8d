"""Enter `xla` in lists of device types that other libraries keep, when they are imported.

A library without a list needs no entry; docs/frameworks.md names what is entered.
"""

from collections.abc import Callable
from types import ModuleType

from ..compat import import_hooks


def _name_backend(module: ModuleType) -> None:
    """Tell Transformers which backend of `torch.distributed` serves `xla`."""
    backends = getattr(module, "DISTRIBUTED_BACKEND_MAP", None)
    if isinstance(backends, dict):
        backends.setdefault("xla", "xla")


# By the module that has the list.
_ENTRIES: dict[str, Callable[[ModuleType], None]] = {"transformers.distributed.utils": _name_backend}


def complete() -> None:
    """Complete the lists of libraries that are imported, and of those that will be."""
    for name, enter in _ENTRIES.items():
        import_hooks.when_imported(name, enter)
