"""Memory as the allocator counts it, or as the living buffers add up."""

import gc
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from torch_xla._engine.client import memory, platform


def test_on_the_host_the_living_buffers_count() -> None:
    gc.collect()  # what other tests left must not go in between
    device = platform.local_devices()[0]
    before = memory.usage(device)
    array = jax.device_put(np.zeros(1 << 20, np.uint8), device)
    during = memory.usage(device)
    assert during.used - before.used == 1 << 20
    del array
    after = memory.usage(device)
    assert after.used == before.used
    assert after.peak >= during.used
    assert after.limit == memory.host_memory() > 1 << 28


def test_an_allocator_that_counts_is_believed() -> None:
    stats = {"bytes_in_use": 10, "bytes_limit": 100, "peak_bytes_in_use": 50}
    device: Any = SimpleNamespace(memory_stats=lambda: stats)
    assert memory.usage(device) == memory.Usage(10, 100, 50)
