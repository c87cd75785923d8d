"""Devices that only compile are known from those that run."""

from types import SimpleNamespace
from typing import Any

import jax

from tests.support.topologies import needs_tpu_compiler
from torch_xla._engine.compat.names.jax_compile_only import is_compile_only
from torch_xla._engine.runtime import device_memory, topologies


def test_a_device_of_this_process_runs() -> None:
    stranger: Any = SimpleNamespace()
    assert not is_compile_only(jax.devices("cpu")[0]) and not is_compile_only(stranger)


@needs_tpu_compiler
def test_a_device_of_a_topology_only_compiles_and_has_no_memory_in_use() -> None:
    device = topologies.devices_of(topologies.named("v5e:2x2"))[3]
    assert is_compile_only(device) and device_memory.usage(device) == device_memory.Usage(0, 0, 0)
    device_memory.forget_peak(device)
