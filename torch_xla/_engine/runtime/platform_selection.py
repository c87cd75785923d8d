"""Select the platform without starting a client, because programs ask while they import."""

import functools
import importlib.metadata
import importlib.util
from pathlib import Path

import jax

from .. import config
from .platform import device_type as started_device_type
from .platform import is_started as is_platform_started
from .platform import local_devices
from .platform import real_name as real_platform_name
from .tpu_chips import is_usable as is_tpu_usable

_OUR_NAMES = {"GPU": "CUDA"}

# Plugins by the platform they add, with what the machine has if it has such a device.
_PLUGINS = {
    "CUDA": (("jax_cuda13_plugin", "jax_cuda12_plugin"), ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")),
    "ROCM": (("jax_rocm7_plugin", "jax_rocm60_plugin"), ("/dev/kfd",)),
}


def device_type() -> str:
    """Return "CPU", "CUDA", "TPU", "ROCM" or a plugin's name: of the client if one runs, else of the one that would
    start.

    Only where a plugin is installed that we do not know does this start the client.
    """
    if config.pjrt_device():
        return started_device_type()
    if is_platform_started():
        return real_platform_name(local_devices()[0]).partition(":")[0]
    wanted: str | None = jax.config.jax_platforms  # type: ignore[attr-defined]
    if wanted:
        return _our_name(wanted.split(",")[0])
    return _what_jax_would_choose()


def _what_jax_would_choose() -> str:
    return _known_hardware() or (started_device_type() if _has_unknown_plugin() else "CPU")


@functools.cache
def _known_hardware() -> str:
    if is_tpu_usable():
        return "TPU"
    for name, (plugins, files) in _PLUGINS.items():
        if any(map(_is_installed, plugins)) and _has_one_of(files):
            return name
    return ""


def has_gpu() -> bool:
    """Return whether the machine has a GPU of NVIDIA or AMD, from device files, whatever plugins are installed."""
    return any(_has_one_of(files) for _, files in _PLUGINS.values())


def _has_one_of(files: tuple[str, ...]) -> bool:
    return any(Path(file).exists() for file in files)


@functools.cache
def _has_unknown_plugin() -> bool:
    known = {"xla_cuda12", "xla_cuda13", "xla_rocm60", "xla_rocm7"}
    return any(entry.name not in known for entry in importlib.metadata.entry_points(group="jax_plugins"))


def is_accelerated() -> bool:
    """Return whether the platform is not the CPU, from settings, files and plugins, without starting the client."""
    wanted: str | None = config.pjrt_device() or jax.config.jax_platforms  # type: ignore[attr-defined]
    if wanted:
        return _our_name(wanted.split(",")[0]) != "CPU"
    return bool(_known_hardware()) or _has_unknown_plugin()


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def is_device_type(name: str) -> bool:
    """Return whether `name`, in any of its spellings, is the platform."""
    return _our_name(name) == device_type()


def _our_name(name: str) -> str:
    upper = name.strip().upper()
    return _OUR_NAMES.get(upper, upper)


def choose(name: str) -> None:
    """Make `name` the platform of the client that is about to start."""
    if is_device_type(name):
        return
    if is_platform_started():
        raise RuntimeError(
            f"set_device_type({name!r}): the client runs on {device_type()} already. Call it before anything uses an "
            f"xla device, or set PJRT_DEVICE={name} for the whole process."
        )
    if config.pjrt_device():
        raise RuntimeError(
            f"set_device_type({name!r}): PJRT_DEVICE={config.pjrt_device()} is set in the environment and counts more. "
            f"Unset it, or set it to {name}."
        )
    # JAX's own setting, because the user asks for it by name. The CPU stays, for what JAX computes on the host.
    lower = _our_name(name).lower()
    jax.config.update("jax_platforms", lower if lower == "cpu" else f"{lower},cpu")
