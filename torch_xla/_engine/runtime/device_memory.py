"""Total and used memory of a device."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import jax

# The memory limit and use of a container, in cgroups of version 2 and 1.
_LIMITS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes on one device: taken, there at all, and the most ever taken."""

    used: int
    limit: int
    peak: int


# The highest use that was measured, by device: the CPU client keeps no record.
_peaks: dict[int, int] = {}


def usage(device: jax.Device) -> Usage:
    """The memory of `device`: as its allocator counts, or on the host the sum of the living buffers."""
    stats = device.memory_stats()
    if stats:
        used = stats["bytes_in_use"]
        limit = stats.get("bytes_limit") or stats.get("bytes_reservable_limit") or 0
        return Usage(used, limit, stats.get("peak_bytes_in_use", used))
    used = sum(_bytes_on(array, device) for array in jax.live_arrays(device.platform))
    peak = _peaks[device.id] = max(used, _peaks.get(device.id, 0))
    return Usage(used, host_memory(), peak)


def forget_peak(device: jax.Device) -> None:
    """Begins to look for the most ever taken anew; raises `NotImplementedError` where the allocator keeps it."""
    if device.memory_stats():
        raise NotImplementedError(
            f"The peak of the memory of {device.platform}:{device.id} is kept by PJRT, which cannot reset it. Compare "
            f"torch.accelerator.max_memory_allocated() before and after instead."
        )
    _peaks.pop(device.id, None)


def _bytes_on(array: jax.Array, device: jax.Device) -> int:
    if array.is_deleted() or device not in array.devices():
        return 0
    # JAX makes the shards of an array in a millisecond, while its program runs, and keeps them.
    return math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize


def host_memory() -> int:
    """The memory of this machine, or what this container may use of it."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files = [folder / name for folder, name, _ in _LIMITS]
    limits = [file.read_text().strip() for file in files if file.exists()]
    return min([physical, *(int(limit) for limit in limits if limit.isdecimal())])


def available() -> int:
    """Return the bytes that a program can still allocate on this machine or in this container."""
    left = [_machine_left()]
    for folder, limit, used in _LIMITS:
        try:
            allowed = (folder / limit).read_text().strip()
            if allowed.isdecimal():
                taken = int((folder / used).read_text())
                left.append(int(allowed) - taken + _reclaimable(folder / "memory.stat"))
        except (OSError, ValueError):
            continue
    return min(left)


def _machine_left() -> int:
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, ValueError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _reclaimable(statistics: Path) -> int:
    """The bytes of files that the kernel would drop before it ends a process."""
    found: dict[str, int] = {}
    for line in statistics.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "active_file"):
            found[name] = int(value)
    return sum(found.values())


def swappable() -> int:
    """The bytes of this machine's memory that could still be moved to a disk; none in a container with a limit."""
    try:
        if host_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            return 0
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["SwapFree"].split()[0]) << 10
    except (OSError, ValueError, KeyError):
        return 0
