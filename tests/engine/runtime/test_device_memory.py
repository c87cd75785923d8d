"""Memory as the allocator counts it, or as the living buffers add up."""

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from torch_xla._engine.runtime import device_memory, platform


def test_on_the_host_the_living_buffers_count() -> None:
    gc.collect()  # what other tests left must not go in between
    device = platform.local_devices()[0]
    before = device_memory.usage(device)
    array = jax.device_put(np.zeros(1 << 20, np.uint8), device)
    during = device_memory.usage(device)
    assert during.used - before.used == 1 << 20
    del array
    after = device_memory.usage(device)
    assert after.used == before.used
    assert after.peak >= during.used
    assert after.limit == device_memory.host_memory() > 1 << 28


def test_an_allocator_that_counts_is_believed() -> None:
    stats = {"bytes_in_use": 10, "bytes_limit": 100, "peak_bytes_in_use": 50}
    device: Any = SimpleNamespace(memory_stats=lambda: stats, id="counting")
    assert device_memory.usage(device) == device_memory.Usage(10, 100, 50)


def test_a_peak_that_cannot_be_reset_counts_when_it_is_new() -> None:
    stats = {"bytes_in_use": 10, "bytes_limit": 100, "peak_bytes_in_use": 50, "pool_bytes": 60, "peak_pool_bytes": 70}
    device: Any = SimpleNamespace(memory_stats=lambda: stats, id="of a test")
    assert device_memory.usage(device) == device_memory.Usage(10, 100, 50, 60, 70)
    device_memory.forget_peak(device)
    assert device_memory.usage(device).peak == 10 and device_memory.usage(device).peak_reserved == 60
    stats["bytes_in_use"] = 30
    assert device_memory.usage(device).peak == 30  # the usage was read meanwhile
    stats["bytes_in_use"] = 20
    device_memory.note_need(device, 40)
    assert device_memory.usage(device).peak == 40  # a program needed it
    stats["peak_bytes_in_use"] = 90
    assert device_memory.usage(device).peak == 90  # beyond the one before


def test_a_container_may_take_what_files_hold_and_no_swap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "max").write_text("1000000\n")
    (tmp_path / "used").write_text("900000\n")
    statistics = "anon 500000\ninactive_file 100000\nactive_file 200000\ntotal_active_file 7\n"
    (tmp_path / "memory.stat").write_text(statistics)
    monkeypatch.setattr(device_memory, "_LIMITS", ((tmp_path, "max", "used"),))
    assert device_memory.available() == 1_000_000 - 900_000 + 300_000
    assert device_memory.swappable() == 0 and device_memory.host_memory() == 1_000_000


def test_an_array_that_a_thread_gives_away_meanwhile_is_still_counted() -> None:
    class Leaving:
        """An array that is deleted right after the question whether it is."""

        def __init__(self) -> None:
            self.array = jax.numpy.ones(4, "float32")

        def is_deleted(self) -> bool:
            was_deleted = self.array.is_deleted()
            self.array.delete()
            return was_deleted

        def __getattr__(self, name: str) -> object:
            return getattr(self.array, name)

    (device,) = jax.numpy.ones(1).devices()
    assert device_memory._bytes_on(Leaving(), device) == 16  # type: ignore[arg-type]
