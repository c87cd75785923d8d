"""PJRT plugins given as objects: registered under a name that `PJRT_DEVICE` can choose."""

import importlib.metadata
from pathlib import Path
from typing import Any

from ..compat.names import jax as private

GROUP = "torch_xla.plugins"

_registered: dict[str, object] = {}


def register(name: str, plugin: Any) -> None:
    """Register the platform `name` with JAX. Raise `FileNotFoundError` without the library."""
    make = getattr(plugin, "make_client", None)
    if make is not None:
        private.add_platform(name.lower(), make)
    else:
        library = plugin.library_path()
        if not library or not Path(library).exists():
            raise FileNotFoundError(
                f"the PJRT plugin of {name} is to be at {library!r}, and there is no such file: "
                f"{type(plugin).__name__}.library_path() must return the path of the shared library"
            )
        private.add_plugin(name.lower(), str(library), plugin.client_create_options)
    _registered[name.upper()] = plugin


def register_installed() -> list[str]:
    """Register the plugins of installed packages (entry points of the group `torch_xla.plugins`)."""
    found = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name.upper() not in _registered:
            register(entry.name, entry.load()())
            found.append(entry.name)
    return found


def plugin_of(name: str) -> Any:
    """Return the plugin that was registered as `name`. Raises `KeyError`."""
    if name.upper() not in _registered:
        raise KeyError(f"no plugin is registered for {name}; there are {sorted(_registered) or 'none'}")
    return _registered[name.upper()]


def is_known(name: str) -> bool:
    """Return whether a plugin is registered as `name`."""
    return name.upper() in _registered
