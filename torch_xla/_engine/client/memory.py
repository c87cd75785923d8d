"""How much memory a device has, and how much of it is taken."""

import os
from dataclasses import dataclass
from pathlib import Path

import jax

# What a container may use, in cgroups of version 2 and 1.
_LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes on one device: taken, there at all, and the most ever taken."""

    used: int
    limit: int
    peak: int


# The CPU client keeps no record: the highest of what was asked for, by device.
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


def _bytes_on(array: jax.Array, device: jax.Device) -> int:
    if array.is_deleted() or device not in array.devices():
        return 0
    if len(array.devices()) == 1:
        return array.nbytes
    return sum(shard.data.nbytes for shard in array.addressable_shards if shard.device == device)


def host_memory() -> int:
    """The memory of this machine, or what this container may use of it."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [file.read_text().strip() for file in _LIMIT_FILES if file.exists()]
    return min([physical, *(int(limit) for limit in limits if limit.isdecimal())])
