"""Snapshots and histories of memory, as PyTorch's own tools and viewer read those of CUDA."""

import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz

import torch_xla

memory: Any = torch.xla.memory  # type: ignore[attr-defined]
MEGABYTE = 1 << 20
_LIFE = ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]


@pytest.fixture(autouse=True)
def at_rest() -> Iterator[None]:
    torch_xla.sync(wait=True)
    gc.collect()
    yield
    memory._record_memory_history(None, clear_history=True)


def made_here(megabytes: int) -> torch.Tensor:
    x = torch.full((megabytes, MEGABYTE), 3, dtype=torch.uint8, device="xla")
    torch_xla.sync(wait=True)
    return x


def test_what_lives_is_in_the_snapshot_with_its_line() -> None:
    before = {each["address"] for each in memory.memory_snapshot()}
    kept = made_here(3)
    new = [each for each in memory.memory_snapshot() if each["address"] not in before]
    (segment,) = [each for each in new if each["total_size"] == kept.nbytes]
    (block,) = segment["blocks"]
    assert block["state"] == "active_allocated" and block["address"] == segment["address"]
    assert block["frames"][0]["name"] == "made_here" and block["frames"][0]["filename"] == __file__
    assert sum(each["allocated_size"] for each in memory.memory_snapshot()) == torch.accelerator.memory_allocated()
    address = segment["address"]
    del kept
    assert address not in {each["address"] for each in memory.memory_snapshot()}


def test_the_history_has_what_came_and_went() -> None:
    memory._record_memory_history()
    kept = made_here(2)
    made_here(5)
    made_here(1)
    (trace,) = memory._snapshot()["device_traces"]
    five = [each for each in trace if each["size"] == 5 * MEGABYTE]
    assert [each["action"] for each in five] == _LIFE
    assert len({each["addr"] for each in five}) == 1
    assert [each["time_us"] for each in trace] == sorted(each["time_us"] for each in trace)
    assert five[0]["frames"][0]["name"] == "made_here"
    assert "test_the_history_has_what_came_and_went" in [frame["name"] for frame in five[0]["frames"]]
    assert [each["action"] for each in trace if each["size"] == kept.nbytes] == _LIFE[:2]
    # The entries add up to what lives.
    came = sum(each["size"] for each in trace if each["action"] == "alloc")
    went = sum(each["size"] for each in trace if each["action"] == "free_completed")
    del kept
    assert came - went >= 2 * MEGABYTE


def test_a_training_can_be_looked_at_in_the_viewer(tmp_path: Path) -> None:
    memory._record_memory_history(max_entries=100_000)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)).to("xla")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(32, 64, device="xla")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
    file = tmp_path / "memory.pickle"
    memory._dump_snapshot(str(file))
    snapshot = pickle.loads(file.read_bytes())
    # The tools that PyTorch has for its own snapshots.
    assert "TOTAL MEM" in (text := _memory_viz.trace(snapshot)) and "cudaMalloc(" in text
    assert "total_allocated" in _memory_viz.segsum(snapshot)
    for page in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)):
        assert "<html" in page or "<script" in page


def test_old_entries_are_dropped_and_the_end_ends_it() -> None:
    memory._record_memory_history(max_entries=2)
    for size in (1, 2, 3):
        made_here(size)
    assert [len(each) for each in memory._snapshot()["device_traces"]] == [2]
    memory._record_memory_history(None)
    made_here(4)
    assert all(each["size"] != 4 * MEGABYTE for trace in memory._snapshot()["device_traces"] for each in trace)
    memory._record_memory_history("state")
    assert memory._snapshot()["device_traces"] == [] or not any(memory._snapshot()["device_traces"])


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match=r"_record_memory_history\('yes'\): expected one of 'all', 'state', None"):
        memory._record_memory_history("yes")
