"""Select the platform without starting a client, because programs ask while they import."""

import functools
import importlib.metadata

import jax

from .. import config
from .gpus import has_gpu as has_gpu
from .gpus import usable_platform as usable_gpu_platform
from .platform import device_type as started_device_type
from .platform import is_started as is_platform_started
from .platform import local_devices
from .platform import real_name as real_platform_name
from .tpu_chips import is_usable as is_tpu_usable

_OUR_NAMES = {"GPU": "CUDA"}


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
    return "TPU" if is_tpu_usable() else usable_gpu_platform()


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
