"""Find the GPUs of this machine by its device files, without a client."""

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import config

# Plugins by the platform they add, with what the machine has if it has such a device.
_PLUGINS = {
    "CUDA": (("jax_cuda13_plugin", "jax_cuda12_plugin"), ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")),
    "ROCM": (("jax_rocm7_plugin", "jax_rocm60_plugin"), ("/dev/kfd",)),
}

_JAX_LOGGER = logging.getLogger("jax._src.xla_bridge")


def has_gpu() -> bool:
    """Return whether the machine has a GPU of NVIDIA or AMD, from device files, whatever plugins are installed."""
    return any(_has_one_of(files) for _, files in _PLUGINS.values())


def usable_platform() -> str:
    """Return "CUDA" or "ROCM" if there is such a GPU and a plugin for it; else an empty text."""
    for name, (plugins, files) in _PLUGINS.items():
        if any(map(_is_installed, plugins)) and _has_one_of(files):
            return name
    return ""


@contextmanager
def starting_without_cuda() -> Iterator[None]:
    """Drop JAX's log of a CUDA plugin that finds no driver, if the machine has none and PJRT_DEVICE asks for no GPU.

    Such a plugin is installed for its compiler, and JAX logs the whole traceback of its refusal in every process.
    """
    if _has_one_of(_PLUGINS["CUDA"][1]) or config.pjrt_device() in ("CUDA", "GPU"):
        yield
        return
    _JAX_LOGGER.addFilter(_is_no_refusal)
    try:
        yield
    finally:
        _JAX_LOGGER.removeFilter(_is_no_refusal)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    said = record.getMessage()
    return not (said.startswith("Jax plugin configuration error: Exception when calling ") and "xla_cuda" in said)


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _has_one_of(files: tuple[str, ...]) -> bool:
    return any(Path(file).exists() for file in files)
