"""Total and used memory of a device."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax

from ..compat.names.jax import is_compile_only

# The memory limit and use of a container, in cgroups of version 2 and 1.
_LIMITS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes on one device: taken, there at all, and the most ever taken; the same of what its allocator holds."""

    used: int
    limit: int
    peak: int
    held: int | None = None  # None: the allocator holds what is taken
    most_held: int | None = None

    @property
    def reserved(self) -> int:
        """The bytes that the allocator holds."""
        return self.used if self.held is None else max(self.held, self.used)

    @property
    def peak_reserved(self) -> int:
        """The most that the allocator held."""
        return self.peak if self.most_held is None else max(self.most_held, self.reserved)


# The highest use that was measured or that a large program needed, by device: the CPU client keeps no record, and that
# of other clients cannot be reset.
_peaks: dict[int, int] = {}
# The peaks of a client at their last reset. A peak above them is newer than the reset.
_forgotten: dict[int, tuple[int, int]] = {}


def usage(device: jax.Device) -> Usage:
    """Return the memory of `device`: as its allocator counts, or on the host the sum of the living buffers.

    A device that only compiles has none.
    """
    if is_compile_only(device):
        return Usage(0, 0, 0)
    stats = device.memory_stats()
    if not stats:
        used = sum(size for _, size in living_on(device))
        peak = _peaks[device.id] = max(used, _peaks.get(device.id, 0))
        return Usage(used, host_memory(), peak)
    used = stats["bytes_in_use"]
    limit = stats.get("bytes_limit") or stats.get("bytes_reservable_limit") or 0
    held = stats.get("pool_bytes") or None
    peak, most_held = _peaks_of(stats)
    if device.id in _forgotten:
        before, held_before = _forgotten[device.id]
        known = _peaks[device.id] = max(used, _peaks.get(device.id, 0))
        peak = peak if peak > before else known
        most_held = most_held if most_held > held_before else 0
    return Usage(used, limit, peak, held, held and max(most_held, held))


def _peaks_of(stats: dict[str, int]) -> tuple[int, int]:
    return stats.get("peak_bytes_in_use", stats["bytes_in_use"]), stats.get("peak_pool_bytes", 0)


def forget_peak(device: jax.Device) -> None:
    """Start a new measurement of the peak.

    A client that keeps its own peak cannot forget it. Until it goes beyond, the most that was asked for counts, and
    that of large programs.
    """
    stats = None if is_compile_only(device) else device.memory_stats()
    if stats:
        _forgotten[device.id] = _peaks_of(stats)
    _peaks.pop(device.id, None)


def note_need(device: jax.Device, needed: int) -> None:
    """Count a program that needs so many bytes, with all that it reads and makes, as taken for a moment."""
    if needed > _peaks.get(device.id, 0):
        _peaks[device.id] = needed


def living_on(device: jax.Device) -> Iterator[tuple[jax.Array, int]]:
    """Return the buffers that live on `device`, with their bytes there."""
    for array in jax.live_arrays(device.platform):
        if size := _bytes_on(array, device):
            yield array, size


def _bytes_on(array: jax.Array, device: jax.Device) -> int:
    # Another thread may give the array away meanwhile: its sharding stays, while `array.devices()` would raise.
    if array.is_deleted() or device not in array.sharding.device_set:
        return 0
    # JAX makes the shards of an array in a millisecond, while its program runs, and keeps them.
    return math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize


def host_memory() -> int:
    """Return the memory of this machine, or what this container may use of it."""
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
    """Return the bytes of files that the kernel would drop before it ends a process."""
    found: dict[str, int] = {}
    for line in statistics.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "active_file"):
            found[name] = int(value)
    return sum(found.values())


def swappable() -> int:
    """Return the bytes of this machine's memory that could still be moved to a disk; none in a container with a
    limit.
    """
    try:
        if host_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            return 0
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["SwapFree"].split()[0]) << 10
    except (OSError, ValueError, KeyError):
        return 0
