"""The counts of the documents: what was made, what is gone, what a step did."""

import gc
import time

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met


@pytest.fixture(autouse=True)
def a_new_step() -> None:
    torch_xla.sync(wait=True)
    gc.collect()  # what the tracebacks of earlier tests hold would go meanwhile
    met.clear_all()


def count(name: str) -> int:
    return met.counter_value(name) or 0


def samples(name: str) -> list[float]:
    data = met.metric_data(name)
    return [] if data is None else [value for _, value in data[2]]


def alive() -> int:
    assert count("DestroyLtcTensor") == count("DestroyXlaTensor")
    return count("CreateXlaTensor") - count("DestroyXlaTensor")


def test_every_tensor_is_counted_when_it_is_made_and_when_it_is_gone() -> None:
    x = torch.ones(3).to("xla")
    assert (count("CreateXlaTensor"), alive()) == (1, 1)
    y, z = x + 1, x * 2
    assert (count("CreateXlaTensor"), alive()) == (3, 3)
    torch_xla.sync()
    assert (count("CreateXlaTensor"), alive()) == (3, 3)
    del y
    assert (count("CreateXlaTensor"), alive()) == (3, 2)
    x.add_(1)
    torch_xla.sync()
    assert (count("CreateXlaTensor"), alive()) == (4, 2)  # the old value of x is gone
    del x, z
    assert (count("CreateXlaTensor"), alive()) == (4, 0)


def test_what_an_early_evaluation_leaves_recorded_is_counted_once() -> None:
    x = torch.ones(3).to("xla")
    y = x + 1
    z = (x * 2).sum()
    assert z.item() == 6
    assert (count("CreateXlaTensor"), alive()) == (4, 3)  # x * 2 is gone
    torch_xla.sync()
    assert (count("CreateXlaTensor"), alive()) == (4, 3)
    assert y.tolist() == [2, 2, 2]


def test_a_step_that_repeats_keeps_no_tensors() -> None:
    weight = torch.ones(3).to("xla").requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    kept = []
    for _ in range(4):
        (weight * 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        kept.append(alive())
    assert len(set(kept)) == 1
    assert count("CreateXlaTensor") > 12


def test_buffers_are_counted_too() -> None:
    x = torch.ones(3).to("xla")
    y, z = x + 1, x * 2
    assert count("CreateDataHandles") == 1
    torch_xla.sync(wait=True)
    assert count("CreateDataHandles") == 3
    gone = count("DestroyDataHandles")
    del y, z
    assert count("DestroyDataHandles") == count("ReleaseDataHandles") == gone + 2


def test_clearing_starts_again_from_what_there_is() -> None:
    x = torch.ones(3).to("xla")
    met.clear_counters()
    assert "CreateXlaTensor" not in met.counter_names() and met.counter_value("CreateXlaTensor") is None
    del x
    assert count("DestroyXlaTensor") == 1


def test_a_program_is_counted_when_it_is_compiled_and_when_it_runs() -> None:
    for _ in range(3):
        x = torch.ones(37).to("xla")
        x.add_(1).mul_(3)
        torch_xla.sync()
        del x
    assert count("UncachedCompile") == count("CreateCompileHandles") == len(samples("CompileTime")) == 1
    assert count("StableHloCompile") == 1
    assert count("CachedCompile") == 2
    assert count("ExecuteComputation") == len(samples("ExecuteTime")) == len(samples("DeviceLockWait")) == 3
    assert count("MarkStep") == count("SyncTensorsToData") == 3
    assert samples("TensorsGraphSize") == [2, 2, 2]
    assert samples("InputOutputAliasCount") == [1]  # the old memory of x takes the new value
    assert len(samples("TransferToDeviceTime")) == len(samples("TransferToDeviceTransformTime")) == 3
    assert samples("OutboundData") == [148] * 3 and samples("InboundData") == []


def test_recording_is_timed_from_its_first_operand_and_waiting_is_not_recording() -> None:
    x = torch.ones(3).to("xla")
    time.sleep(0.2)  # nothing is recorded yet
    begin = time.perf_counter_ns()
    y = x + 1
    time.sleep(0.02)
    torch_xla.sync(wait=True)
    [tracing] = samples("LazyTracing")
    assert 0.02e9 < tracing < time.perf_counter_ns() - begin
    assert y.sum().item() == 6
    assert len(samples("LazyTracing")) == 2
