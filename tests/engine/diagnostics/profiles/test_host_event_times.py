"""Operators and ranges of the host have the time that the device took for them, as on CUDA."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.profiler_util import DeviceType, FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

import torch_xla
from torch_xla._engine.diagnostics.profiles.host_event_times import add_device_times
from torch_xla._engine.diagnostics.profiles.profile_programs import Origin
from torch_xla._engine.diagnostics.profiles.started_programs import StartedProgram
from torch_xla._engine.step.pending_graph import graph_of

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def event(name: str, start: float, end: float, device: Any = DeviceType.CPU) -> FunctionEvent:
    return FunctionEvent(
        id=0, name=name, thread=1, start_us=start, end_us=end, use_device="xla", device_type=device,
        is_legacy=False, device_index=0,
    )  # fmt: skip


def of_device(name: str, start: float, microseconds: float, line: int | None) -> tuple[FunctionEvent, Origin]:
    made = event(name, start, start + microseconds, DeviceType.PrivateUse1)
    return made, Origin(name, None if line is None else ("train.py", line, "step"), "fusion")


def run_of(values: list[torch.Tensor], lines: list[int], microseconds: float) -> StartedProgram:
    """Return a run of the operations pending for `values`; `lines` have recorded them."""
    graph = graph_of(values).graph
    assert len(graph.operations) == len(lines)
    return StartedProgram(graph, [("train.py", line, "step") for line in lines], microseconds * 1000)


def ones() -> torch.Tensor:
    made = torch.ones(3, device="xla")
    torch_xla.sync()  # no operation of the graphs
    return made


def given(events: list[FunctionEvent]) -> dict[str, list[float]]:
    return {each.name: [kernel.duration for kernel in each.kernels] for each in events if each.kernels}


def test_operators_of_a_line_share_its_time_in_their_order() -> None:
    x = ones()
    run = run_of([x.sin().cos().sin().exp_().sin()], [1, 2, 1, 3, 4], 50)
    host = [event("aten::sin", 0, 1), event("aten::cos", 2, 3), event("aten::sin", 4, 5), event("aten::exp_", 6, 7)]
    host += [event("aten::sin", 8, 9)]
    times = [60, 62, 64, 66]
    device = [of_device("aten::sin", time, 1 + index, 1) for index, time in enumerate(times)]
    device += [of_device("aten::cos", 61, 20, 2), of_device("aten::exp", 70, 30, 3), of_device("aten::sin", 59, 40, 4)]
    add_device_times(host, device, [run], 0)
    assert [[kernel.duration for kernel in each.kernels] for each in host] == [[1, 2], [20], [3, 4], [30], [40]]


def test_each_run_has_the_operators_recorded_before_it() -> None:
    x = ones()
    first, second = run_of([x.sin()], [1], 10), run_of([x.sin()], [1], 30)
    host = [event("aten::sin", 2, 3), event("aten::sin", 22, 23)]
    device = [of_device("aten::sin", 31, 7, 1), of_device("aten::sin", 30, 5, 1)]
    add_device_times(host, device, [second, first], 0)
    assert [[kernel.duration for kernel in each.kernels] for each in host] == [[5], [7]]


def test_what_nobody_called_counts_for_the_event_around_the_start() -> None:
    """Such as the operators of a replay, and copies that XLA has put in."""
    x = ones()
    replayed, alone = run_of([x.sin()], [1], 10), run_of([x.cos()], [1], 50)
    host = [event("outer", 0, 30), event("inner", 5, 20), event("after", 20, 30)]
    device = [of_device("aten::sin", 11, 4, 1), of_device("copy.1", 12, 2, None), of_device("aten::cos", 51, 9, 1)]
    add_device_times(host, device, [replayed, alone], 0)
    assert given(host) == {"inner": [4, 2]}
    add_device_times(host, [of_device("copy.2", 3, 1, None)], [], 0)  # ran before anything was seen to start
    assert given(host) == {"inner": [4, 2]}


def test_the_event_around_a_start_may_have_others_inside_that_have_ended() -> None:
    x = ones()
    runs = [run_of([x.sin()], [1], time) for time in (12, 25, 60)]
    host = [event("outer", 0, 50), event("inner", 10, 20), event("last", 55, 58)]
    device = [of_device("aten::sin", 13, 1, 1), of_device("aten::sin", 26, 2, 1), of_device("aten::sin", 61, 4, 1)]
    add_device_times(host, device, runs, 0)
    assert given(host) == {"outer": [2], "inner": [1]}


def test_an_operator_of_another_line_than_its_program_is_found_by_its_name() -> None:
    """An executable that equal stages share has the lines of the first."""
    x = ones()
    run = run_of([x.sin().sin()], [1, 2], 10)
    host = [event("aten::sin", 0, 1), event("aten::sin", 2, 3)]
    add_device_times(host, [of_device("aten::sin", 11, 4, 8), of_device("aten::sin", 15, 6, 8)], [run], 0)
    assert [[kernel.duration for kernel in each.kernels] for each in host] == [[4], [6]]


def recorded(model: torch.nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(64, 300, device="xla")

    def step() -> None:
        with record_function("forward of it"):
            loss = model(x).square().mean()
        with record_function("backward of it"):
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("way", ["recorded", "openxla", "eager"])
def test_ranges_have_the_time_of_what_is_inside(way: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.GELU(), torch.nn.Linear(300, 30)).to("xla")
    step = recorded(torch.compile(model, backend="openxla") if way == "openxla" else model)
    with torch_xla.experimental.eager_mode_context(way == "eager"):
        for _ in range(3):
            step()
            torch_xla.sync()
        torch_xla.sync(wait=True)
        with profile(activities=BOTH) as taken:
            with record_function("two steps"):
                for _ in range(2):
                    step()
                    torch_xla.sync()
    device = sum(each.device_time_total for each in taken.events() if each.device_type == DeviceType.PrivateUse1)
    rows = {row.key: row for row in taken.key_averages() if row.device_type == DeviceType.CPU}
    parts = ["forward of it", "backward of it", "Optimizer.step#AdamW.step"]
    assert all(rows[part].device_time_total > 0 for part in parts)
    assert rows["two steps"].device_time_total == pytest.approx(device)
    # What is left are copies that XLA puts in.
    assert sum(rows[part].device_time_total for part in parts) == pytest.approx(device, rel=0.2)
    assert rows["two steps"].self_device_time_total < 0.2 * device


def test_a_range_around_a_replay_has_its_time() -> None:
    model = torch.nn.Linear(300, 30).to("xla")
    step = torch_xla.compile(recorded(model), replay=True)
    for _ in range(8):
        step()
    assert step.is_replayed
    torch_xla.sync(wait=True)
    with profile(activities=BOTH) as taken, record_function("replayed"):
        step()
    device = sum(each.device_time_total for each in taken.events() if each.device_type == DeviceType.PrivateUse1)
    (around,) = (each for each in taken.events() if each.name == "replayed")
    assert 0 < around.device_time_total == pytest.approx(device)
