"""PJRT plugins: how the device of another vendor becomes `xla`.

A plugin that JAX finds by itself (a package with an entry point of the group `jax_plugins`) needs nothing of this:
`PJRT_DEVICE=<its name>` chooses it.
"""

from .._engine import config
from .._engine.runtime import pjrt_plugins as _plugins
from .._engine.runtime import platform_selection

_dynamic = False


class DevicePlugin:
    """What a plugin tells of itself. A subclass gives at least the path of its library.

    >>> from torch_xla.experimental.plugins import DevicePlugin, register_plugin
    >>> class MyPlugin(DevicePlugin):
    ...     def library_path(self):
    ...         return "/opt/mine/libpjrt.so"
    >>> register_plugin("MINE", MyPlugin())
    Traceback (most recent call last):
    FileNotFoundError: the PJRT plugin of MINE is to be at '/opt/mine/libpjrt.so', and there is no such file: ...

    One that has a method `make_client()`, which returns a client of JAX's, needs no library.
    """

    def library_path(self) -> str:
        """The path of the shared library, which exports `GetPjrtApi`."""
        raise NotImplementedError(f"{type(self).__name__} must say where its library is: define library_path()")

    def host_index(self) -> int:
        """Which host this is, of those that take part."""
        return 0

    def configure_single_process(self) -> None:
        """What must be done before this process uses the device alone: nothing, unless a subclass says so."""

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """What must be done before a process uses its share: nothing, unless a subclass says so."""

    def physical_chip_count(self) -> int:
        """How many devices this host has."""
        return 1

    def client_create_options(self) -> dict[str, str | int | list[int] | float | bool]:
        """Options by which the plugin makes its client."""
        return {}

    def requires_xla_coordinator(self) -> bool:
        """Whether processes need XLA's coordination service."""
        return False


def use_dynamic_plugins() -> None:
    """Says that plugins are used: they are whenever PJRT_DEVICE names one, so that `using_dynamic_plugins` tells."""
    global _dynamic
    _dynamic = True


def using_dynamic_plugins() -> bool:
    """Whether plugins were asked for, by `use_dynamic_plugins` or PJRT_DYNAMIC_PLUGINS, and the device is no CPU."""
    return (_dynamic or config.dynamic_plugins()) and platform_selection.device_type() != "CPU"


def default() -> DevicePlugin:
    """The plugin of the device that is used. Raises `KeyError` if its platform is none of a registered plugin."""
    found: DevicePlugin = _plugins.plugin_of(platform_selection.device_type())
    return found


def register_plugin(name: str, device_plugin: DevicePlugin) -> None:
    """Makes the plugin's platform known; `PJRT_DEVICE=name` then chooses it. Before anything uses a device."""
    _plugins.register(name, device_plugin)


def register_installed_plugins() -> None:
    """Registers the plugins of installed packages (entry points of the group `torch_xla.plugins`).

    It happens by itself where PJRT_DEVICE names a platform that is not known otherwise.
    """
    _plugins.register_installed()
