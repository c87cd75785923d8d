"""`torch.xla.memory`: how much memory a device has, how much is taken, and the most that was taken."""

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ...metrics.human_units import size
from ...runtime import device_memory, host_malloc, platform
from ...runtime.device_memory import Usage
from ...tensor import device as devices
from ...tensor.device_names import index_in_use, index_or_current


def usage_of(device: object = None) -> Usage:
    """Return the memory of a device; zeros before the process uses one, so that the question starts no client."""
    index = index_or_current(device)
    if not platform.is_started():
        return Usage(0, 0, 0)
    return device_memory.usage(devices.device_at(index).target.device)


def empty_cache() -> None:
    """Return to the system what the host keeps for the next programs. Other devices' memory is PJRT's."""
    host_malloc.release_memory()


def memory_stats_as_nested_dict(device: object = None) -> dict[str, Any]:
    """Return the bytes taken and the most ever taken, nested by the parts of their names in `memory_stats`."""
    used = usage_of(device)
    taken = {"all": {"current": used.used, "peak": used.peak}}
    reserved = {"all": {"current": used.reserved, "peak": used.peak_reserved}}
    return {"active_bytes": taken, "allocated_bytes": taken, "reserved_bytes": reserved}


def memory_stats(device: object = None) -> "OrderedDict[str, object]":
    """Return bytes by name, such as "allocated_bytes.all.peak": those of CUDA's names that PJRT knows."""
    return OrderedDict(
        (f"{name}.{pool}.{kind}", value)
        for name, pools in memory_stats_as_nested_dict(device).items()
        for pool, values in pools.items()
        for kind, value in values.items()
    )


def memory_allocated(device: object = None) -> int:
    """Return the bytes that are taken on a device."""
    return usage_of(device).used


def max_memory_allocated(device: object = None) -> int:
    """Return the most bytes that were taken on a device since the start, or since `reset_peak_memory_stats`."""
    return usage_of(device).peak


def memory_reserved(device: object = None) -> int:
    """Return the bytes that the allocator of a device holds."""
    return usage_of(device).reserved


def max_memory_reserved(device: object = None) -> int:
    """Return the most bytes that the allocator of a device held."""
    return usage_of(device).peak_reserved


def reset_peak_memory_stats(device: object = None) -> None:
    """Measure the peak of bytes from now on."""
    index = index_or_current(device)
    if platform.is_started():
        device_memory.forget_peak(devices.device_at(index).target.device)


def reset_accumulated_memory_stats(device: object = None) -> None:
    """Do nothing: PJRT has no sums over time that could be reset."""
    index_in_use(device)


def mem_get_info(device: object = None) -> tuple[int, int]:
    """Return the bytes that a device has left, and how many it has. Starts the client."""
    target = devices.device_at(index_or_current(device)).target
    used = device_memory.usage(target.device)
    # The memory of the host is shared with other processes.
    left = min(device_memory.available(), used.limit) if target.is_host else used.limit - used.used
    return left, used.limit


def device_memory_used(device: object = None) -> int:
    """Return the bytes of a device that are not left, whichever process has them. Starts the client."""
    left, total = mem_get_info(device)
    return total - left


def memory_summary(device: object = None, abbreviated: bool = False) -> str:
    """Return the statistics of a device as a table."""
    index = index_or_current(device)
    rows = [
        (name.replace("_", " "), size(values["all"]["current"]), size(values["all"]["peak"]))
        for name, values in memory_stats_as_nested_dict(index).items()
    ]
    title = f"memory of xla:{index}"
    width = max(len(title), *(len(name) for name, _, _ in rows))
    lines = [f"{title:<{width}}  {'current':>12}  {'peak':>12}"]
    return "\n".join(lines + [f"{name:<{width}}  {current:>12}  {peak:>12}" for name, current, peak in rows])


def _renamed(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """Return a function under the name that CUDA had for it, and warns of."""

    def former(device: object = None) -> object:
        warnings.warn(f"torch.xla.{name} is now torch.xla.{function.__name__}.", FutureWarning, stacklevel=2)
        return function(device)

    former.__name__ = former.__qualname__ = name
    former.__doc__ = f"Call `{function.__name__}`, as this was named before."
    return former


# The members of `torch.xla` in this module.
MEMBERS: dict[str, Callable[..., object]] = {
    function.__name__: function
    for function in (
        device_memory_used, empty_cache, max_memory_allocated, max_memory_reserved, mem_get_info, memory_allocated,
        memory_reserved, memory_stats, memory_stats_as_nested_dict, memory_summary, reset_accumulated_memory_stats,
        reset_peak_memory_stats,
        _renamed("memory_cached", memory_reserved),
        _renamed("max_memory_cached", max_memory_reserved),
        _renamed("reset_max_memory_allocated", reset_peak_memory_stats),
        _renamed("reset_max_memory_cached", reset_peak_memory_stats),
    )
}  # fmt: skip
