"""Streams and events: one order of execution, whose end can be waited for and timed."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.dispatch.register import torch_accelerator
from torch_xla._engine.step import in_flight
from torch_xla._engine.tensor import device as devices

xla: Any = torch.xla  # type: ignore[attr-defined]


def test_streams_and_events_are_one_order_of_execution() -> None:
    stream, event = xla.Stream(), xla.Event()
    with xla.stream(stream):
        x = torch.ones(2, device="xla") + 1
    event.record()
    stream.wait_event(event)
    xla.current_stream().synchronize()
    event.synchronize()
    assert event.query() and stream.query()
    assert x.tolist() == [2, 2]


def test_streams_and_events_are_those_that_the_library_takes() -> None:
    stream, event = xla.current_stream(), xla.current_stream().record_event()
    assert isinstance(stream, torch.Stream) and isinstance(event, torch.Event)
    torch.accelerator.current_stream().wait_event(event)
    torch.Stream.wait_event(stream, event)
    assert stream == xla.Stream() == torch.Stream(device="xla:0") and hash(stream) == hash(xla.Stream())
    assert stream.device == event.device == torch.device("xla", 0)


def test_events_tell_how_long_the_device_took() -> None:
    begin, between, end = (xla.Event(enable_timing=True) for _ in range(3))
    begin.record()
    x = torch.ones(300, 300, device="xla")
    for _ in range(3):
        x = x @ x / 300
    between.record()
    end.record()
    assert 0 <= between.elapsed_time(end) < begin.elapsed_time(end)
    assert begin.elapsed_time(between) + between.elapsed_time(end) == pytest.approx(begin.elapsed_time(end))
    with pytest.raises(ValueError, match=r"made with `enable_timing=True`"):
        begin.elapsed_time(xla.Event())
    with pytest.raises(ValueError, match=r"must be recorded before"):
        begin.elapsed_time(xla.Event(enable_timing=True))


@pytest.mark.parametrize("device", ["xla", "xla:0", torch.device("xla"), 0, None])
def test_events_of_pytorch_can_be_waited_for_and_timed(device: Any) -> None:
    begin, end = torch.Event(device, enable_timing=True), torch.Event(device=device, enable_timing=True)
    begin.record()
    x = torch.ones(3, device="xla") + 1
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) > 0 and end.query()
    assert isinstance(end, torch.Event) and end.device == torch.device("xla", 0)
    assert x.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "wait",
    [
        lambda: torch.Stream("xla").synchronize(),
        lambda: torch.accelerator.current_stream().synchronize(),
        lambda: xla.current_stream().synchronize(),
        lambda: torch.Stream("xla").record_event().synchronize(),
        lambda: torch.accelerator.synchronize(),
    ],
)
def test_a_stream_of_pytorch_runs_what_was_recorded(wait: Any) -> None:
    torch.ones(3, device="xla").tolist()
    torch_xla.sync()
    x = torch.ones(3, device="xla") + 5
    before = met.counter_value("ExecuteComputation") or 0
    wait()
    assert met.counter_value("ExecuteComputation") == before + 1
    assert x.tolist() == [6, 6, 6]


def test_blocks_in_a_stream() -> None:
    stream = xla.current_stream()
    for block in (torch.Stream("xla"), xla.stream(stream), xla.StreamContext(stream), xla.stream(None)):
        with block:
            x = torch.ones(2, device="xla") * 3
        assert x.tolist() == [3, 3]


def test_events_of_other_devices_are_pytorchs() -> None:
    assert type(torch.Event("cpu")) is torch.Event
    assert torch.Event.__module__ == "torch" and torch.Stream.__module__ == "torch"
    with pytest.raises(RuntimeError):
        torch.Event("cpu").record()


@pytest.mark.parametrize("make", [torch.Event, xla.Event])
def test_an_event_is_not_shared_with_another_process(make: Any) -> None:
    with pytest.raises(NotImplementedError, match=r"interprocess=True.*torch.distributed.barrier"):
        make("xla", interprocess=True)
    with pytest.raises(NotImplementedError, match=r"ipc_handle.*torch.distributed.barrier"):
        make("xla").ipc_handle()
    with pytest.raises(NotImplementedError, match=r"from_ipc_handle.*torch.distributed.barrier"):
        xla.Event.from_ipc_handle(torch.device("xla"), b"")


@pytest.mark.parametrize("make", [torch.Event, xla.Event])
def test_an_event_tells_whether_the_device_has_come_to_it(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    event, has_ended = make("xla"), False
    end = SimpleNamespace(is_ready=lambda: has_ended, is_deleted=lambda: False)
    assert event.query()  # it was not recorded
    with monkeypatch.context() as patched:
        patched.setattr(in_flight, "ends_of", lambda device: [end])
        event.record()
        assert not event.query() and not xla.current_stream().query()
        has_ended = True
        assert event.query() and torch.Stream("xla").query()


def test_a_loop_that_asks_a_stream_comes_to_an_end() -> None:
    x = torch.ones(200, 200, device="xla")
    for _ in range(20):
        x = x @ x / 200
    while not torch.Stream("xla").query():
        pass
    assert x[0, 0].item() == 1


def test_a_stream_has_one_priority() -> None:
    least, greatest = xla.Stream.priority_range()
    assert least == greatest == xla.Stream(priority=-1).priority == 0


def test_a_compiled_function_may_wait() -> None:
    def timed(x: torch.Tensor) -> torch.Tensor:
        event = torch.Event("xla")
        y = x + 1
        event.record()
        event.synchronize()
        return y

    x = torch.ones(3, device="xla")
    assert torch.compile(timed, backend="openxla")(x).tolist() == [2, 2, 2]
    assert torch_xla.compile(timed)(x).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "make", [lambda: torch.Stream("xla"), lambda: torch.Event("xla"), lambda: torch.Generator("xla")]
)
def test_what_names_the_device_makes_it_the_accelerator(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "existing", [])
    monkeypatch.setattr(torch_accelerator.platform, "is_started", lambda: False)
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    xla.current_stream(), xla.default_stream()  # as checkpoints of CPU programs ask
    assert torch.accelerator.current_accelerator() is None
    make()
    assert torch.accelerator.current_accelerator() == torch.device("xla")
    assert torch.accelerator.is_available()


@pytest.mark.parametrize("take", [torch.xla.set_stream, torch.xla.stream, torch.accelerator.set_stream])
def test_what_is_no_stream_is_refused(take: Any) -> None:
    take(torch.xla.current_stream())
    with pytest.raises(TypeError, match=r"^torch.xla.(set_)?stream: expected a torch.Stream or None, got 3$"):
        take(3)
