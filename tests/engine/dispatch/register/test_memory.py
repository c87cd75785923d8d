"""Memory statistics of `torch.xla` and `torch.accelerator`, by the names of CUDA programs."""

import gc
from typing import Any

import pytest
import torch

import torch_xla

xla: Any = torch.xla  # type: ignore[attr-defined]
MEGABYTE = 1 << 20


def tensor_of(megabytes: int) -> torch.Tensor:
    x = torch.full((megabytes, MEGABYTE), 1, dtype=torch.uint8, device="xla")
    torch_xla.sync(wait=True)
    return x


def test_what_is_taken_grows_and_falls_with_tensors() -> None:
    tensor_of(1)
    gc.collect()
    before = xla.memory_allocated()
    x = tensor_of(8)
    assert xla.memory_allocated() == torch.accelerator.memory_allocated() == before + 8 * MEGABYTE
    del x
    assert xla.memory_allocated("xla:0") == before
    assert xla.max_memory_allocated() == torch.accelerator.max_memory_allocated() >= before + 8 * MEGABYTE


def test_the_peak_falls_after_a_reset() -> None:
    x = tensor_of(16)
    assert xla.max_memory_allocated(0) >= 16 * MEGABYTE
    del x
    gc.collect()
    xla.reset_peak_memory_stats(torch.device("xla"))
    assert xla.max_memory_allocated() == xla.memory_allocated()
    tensor_of(4)  # no statistics are read while it is alive
    assert xla.max_memory_allocated() >= 4 * MEGABYTE
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.accelerator.memory_allocated()


def test_the_peak_counts_what_a_program_needs_for_a_moment() -> None:
    x = tensor_of(1).float()
    torch_xla.sync(wait=True)
    xla.reset_peak_memory_stats()
    torch.sort(x.flatten()).values.sum().item()
    assert xla.max_memory_allocated() >= x.nbytes + 4 * MEGABYTE


def test_statistics_have_the_names_of_cuda() -> None:
    kept = tensor_of(2)
    stats = xla.memory_stats()
    assert stats == torch.accelerator.memory_stats()
    assert list(stats) == sorted(stats) and all(value >= kept.nbytes for value in stats.values())
    for name in ("active_bytes", "allocated_bytes", "reserved_bytes"):
        assert stats[f"{name}.all.peak"] >= stats[f"{name}.all.current"]
        assert xla.memory_stats_as_nested_dict()[name]["all"]["peak"] == stats[f"{name}.all.peak"]
    assert xla.memory_reserved() <= xla.max_memory_reserved()
    assert "allocated bytes" in xla.memory_summary() and "peak" in xla.memory_summary()


def test_what_is_left_is_less_than_there_is() -> None:
    left, total = xla.mem_get_info()
    assert 0 < left < total == xla.get_device_properties().total_memory
    assert xla.device_memory_used() < total
    assert torch.accelerator.get_memory_info()[1] == total
    if xla.get_device_properties().platform == "cpu":
        # The host's memory is shared with others, so not all that this process has not taken is left.
        assert left < total - xla.memory_allocated()


@pytest.mark.parametrize("old, new", [
    ("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved"),
    ("reset_max_memory_allocated", "reset_peak_memory_stats"), ("reset_max_memory_cached", "reset_peak_memory_stats"),
])  # fmt: skip
def test_former_names_warn(old: str, new: str) -> None:
    with pytest.warns(FutureWarning, match=rf"torch.xla.{old} is now torch.xla.{new}"):
        assert getattr(xla, old)() == getattr(xla, new)()


def test_another_ordinal_is_refused() -> None:
    with pytest.raises(RuntimeError, match="xla:99 does not exist"):
        xla.memory_allocated(99)
