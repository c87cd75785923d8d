"""`torch.accelerator` as its documentation describes it, and what a backend of PyTorch has besides, on `xla`."""

import io
import pickle
from typing import Any

import pytest
import torch

import torch_xla

accelerator: Any = torch.accelerator


@pytest.fixture(autouse=True)
def used() -> None:
    torch.ones(1, device="xla")  # `xla` is the accelerator from its first use on


def test_every_name_is_there() -> None:
    assert [name for name in accelerator.__all__ if not hasattr(accelerator, name)] == []
    assert accelerator.current_accelerator(check_available=True) == torch.device("xla")
    assert accelerator.is_available() and accelerator.device_count() >= 1


@pytest.mark.parametrize("device", [0, "xla:0", torch.device("xla", 0)])
def test_the_device_is_set_and_waited_for_by_each_kind_of_name(device: Any) -> None:
    accelerator.set_device_index(device)
    assert accelerator.current_device_index() == 0
    with accelerator.device_index(0):
        assert accelerator.current_device_index() == 0
    accelerator.synchronize(device)
    assert accelerator.current_stream(device).device == torch.device("xla", 0)


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [("cpu", ValueError, "doesn't match the current accelerator xla"), (99, RuntimeError, "xla:99 does not exist")],
)
def test_a_device_that_is_no_accelerator_is_refused(device: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        accelerator.set_device_index(device)
    assert accelerator.current_device_index() == 0


def test_streams_and_events_are_those_of_the_accelerator() -> None:
    before, other = accelerator.current_stream(), torch.Stream()
    assert other.device.type == "xla"
    accelerator.set_stream(other)
    assert accelerator.current_stream() == other
    accelerator.set_stream(before)
    begin, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
    begin.record(before)
    x = torch.ones(100, 100, device="xla")
    y = x @ x
    before.record_event(end)
    other.wait_event(end)
    other.wait_stream(before)
    end.synchronize()
    assert end.query() and begin.elapsed_time(end) > 0 and y[0, 0].item() == 100


def test_memory_is_counted_and_its_peak_reset() -> None:
    accelerator.synchronize()
    before = accelerator.memory_allocated()
    held = torch.ones(1 << 18, device="xla")
    torch_xla.sync(wait=True)
    assert accelerator.memory_allocated() - before == 1 << 20 <= accelerator.max_memory_allocated()
    del held
    accelerator.reset_peak_memory_stats()
    assert accelerator.memory_allocated() == before and accelerator.max_memory_allocated() < before + (1 << 20)
    free, total = torch.xla.mem_get_info()  # type: ignore[attr-defined]
    assert 0 < free < total
    accelerator.empty_cache()
    accelerator.reset_accumulated_memory_stats()
    assert accelerator.memory_stats() and accelerator.memory_reserved() <= accelerator.max_memory_reserved()


def test_generators_repeat_and_are_restored() -> None:
    generator = torch.Generator("xla").manual_seed(5)
    first, state = torch.randn(3, device="xla", generator=generator), generator.get_state()
    second = torch.randn(3, device="xla", generator=generator)
    assert generator.initial_seed() == 5 and generator.device.type == "xla"
    assert torch.equal(first.cpu(), torch.randn(3, device="xla", generator=generator.manual_seed(5)).cpu())
    generator.set_state(state)
    assert torch.equal(second.cpu(), torch.randn(3, device="xla", generator=generator).cpu())
    before = torch.xla.get_rng_state()  # type: ignore[attr-defined]
    with torch.random.fork_rng(device_type="xla"):
        torch.rand(2, device="xla")
    assert torch.equal(before, torch.xla.get_rng_state())  # type: ignore[attr-defined]


def test_mixed_precision_has_a_dtype_and_a_scaler() -> None:
    model = torch.nn.Linear(4, 4).to(accelerator.current_accelerator())
    with torch.autocast("xla"):
        found = model(torch.ones(2, 4, device="xla"))
        assert found.dtype == torch.get_autocast_dtype("xla") == torch.bfloat16 and torch.is_autocast_enabled("xla")
    scaler, optimizer = torch.amp.GradScaler("xla"), torch.optim.SGD(model.parameters(), 0.1)
    scaler.scale(model(torch.ones(2, 4, device="xla")).sum()).backward()  # type: ignore[no-untyped-call]
    scaler.step(optimizer)
    scaler.update()
    assert torch.amp.is_autocast_available("xla") and scaler.get_scale() == 65536


def test_tensors_are_saved_and_come_back_to_where_they_should() -> None:
    file, x = io.BytesIO(), torch.arange(4.0, device="xla")
    torch.save({"whole": x, "part": x[1:]}, file)
    loaded = [torch.load(io.BytesIO(file.getvalue()), map_location=place) for place in (None, "cpu", "xla:0")]
    assert [each["whole"].device.type for each in loaded] == ["xla", "cpu", "xla"]
    loaded[0]["whole"][1] = 9
    assert loaded[0]["part"].tolist() == [9, 2, 3] and pickle.loads(pickle.dumps(x)).device == x.device
