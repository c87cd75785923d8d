"""PJRT plugins: use the device of another vendor as `xla`.

A plugin that JAX finds by itself (a package with an entry point of the group `jax_plugins`) needs none of these
functions: `PJRT_DEVICE=<its name>` chooses it.
"""

from .._engine import config, runtime
from .._engine import runtime as _runtime
from .._XLAC import PjRtPlugin

_dynamic = False


class DevicePlugin(PjRtPlugin):
    """The description of a plugin. A subclass defines at least the path of the library.

    >>> from torch_xla.experimental.plugins import DevicePlugin, register_plugin
    >>> class MyPlugin(DevicePlugin):
    ...     def library_path(self):
    ...         return "/opt/mine/libpjrt.so"
    >>> register_plugin("MINE", MyPlugin())
    Traceback (most recent call last):
    FileNotFoundError: the PJRT plugin of MINE is to be at '/opt/mine/libpjrt.so', and there is no such file: ...

    A plugin with a method `make_client()`, which returns a client of JAX, needs no library.
    """

    def library_path(self) -> str:
        """Return the path of the shared library, which exports `GetPjrtApi`."""
        raise NotImplementedError(f"{type(self).__name__} must say where its library is: define library_path()")

    def host_index(self) -> int:
        """Return the index of this host among those of the program."""
        return 0

    def configure_single_process(self) -> None:
        """Prepare this process to use the device alone. By default, do nothing."""

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Prepare a process to use its share of the device. By default, do nothing."""

    def physical_chip_count(self) -> int:
        """Return the number of devices of this host."""
        return 1

    def client_create_options(self) -> dict[str, str | int | list[int] | float | bool]:
        """Return the options with which the plugin creates its client."""
        return {}

    def requires_xla_coordinator(self) -> bool:
        """Return whether processes need XLA's coordination service."""
        return False


def use_dynamic_plugins() -> None:
    """Make `using_dynamic_plugins` return True. A plugin that PJRT_DEVICE names is used in any case."""
    global _dynamic
    _dynamic = True


def using_dynamic_plugins() -> bool:
    """Return whether `use_dynamic_plugins` or PJRT_DYNAMIC_PLUGINS asks for plugins, and the device is not a CPU."""
    return (_dynamic or config.dynamic_plugins()) and runtime.selected_device_type() != "CPU"


def default() -> DevicePlugin:
    """Return the plugin of the device in use. Raises `KeyError` if its platform has no registered plugin."""
    found: DevicePlugin = _runtime.plugin_of(runtime.selected_device_type())
    return found


def register_plugin(name: str, device_plugin: DevicePlugin) -> None:
    """Register a plugin, so that `PJRT_DEVICE=name` chooses it. Call this before anything uses a device."""
    _runtime.register_plugin(name, device_plugin)


def register_installed_plugins() -> None:
    """Register the plugins of installed packages (entry points of the group `torch_xla.plugins`).

    The package calls this itself if PJRT_DEVICE names an unknown platform.
    """
    _runtime.register_installed_plugins()
