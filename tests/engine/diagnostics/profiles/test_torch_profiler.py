"""`torch.profiler` on `xla`: a lane of the device with operators, modules, lines and times, as on CUDA."""

import gzip
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
from torch.autograd.profiler_util import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

import torch_xla
import torch_xla.core.xla_model as xm

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(96, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x))


def trained(rows: int = 64) -> Callable[[], None]:
    model = torch.nn.Sequential(Block(), Block()).to("xla")
    x = torch.randn(rows, 96, device="xla")

    def step() -> None:
        model(x).square().mean().backward()
        torch_xla.sync()

    return step


def of_device(taken: Any) -> list[Any]:
    events = taken.function_events if isinstance(taken, torch.autograd.profiler.profile) else taken.events()
    return [event for event in events if event.device_type == DeviceType.PrivateUse1]


def test_the_device_has_events_with_times() -> None:
    step = trained()
    step()
    xm.wait_device_ops()  # of this step nothing is profiled
    with profile(activities=BOTH) as taken:
        for _ in range(3):
            step()
    events = of_device(taken)
    names = {event.name for event in events}
    assert {"aten::linear", "aten::linear_backward"} <= names
    assert sum(event.device_time_total for event in events) > 0
    rows = {row.key: row for row in taken.key_averages() if row.device_type == DeviceType.PrivateUse1}
    assert rows["aten::linear_backward"].self_device_time_total > 0 and rows["aten::linear_backward"].count >= 3
    table = taken.key_averages().table(sort_by="self_device_time_total", row_limit=5)
    assert "Self XLA" in table and "Self XLA time total: 0.000us" not in table
    # The device works while the host is profiled, on one clock.
    host = [event for event in taken.events() if event.device_type == DeviceType.CPU]
    assert min(event.time_range.start for event in events) > min(event.time_range.start for event in host)
    assert max(event.time_range.end for event in events) < max(event.time_range.end for event in host) + 60e6


def test_the_default_activities_have_the_lane_too() -> None:
    step = trained()
    step()
    with profile() as taken:
        step()
    assert of_device(taken)


def test_the_older_profiler_has_the_lane_too(capfd: pytest.CaptureFixture[str]) -> None:
    step = trained()
    with torch.autograd.profiler.profile(use_device="xla") as taken:
        step()
    assert "aten::linear" in {event.name for event in of_device(taken)}
    assert "PrivateUse1" not in capfd.readouterr().err  # PyTorch's C++ warns at each operator of what is not enabled


def test_modules_and_lines_are_in_the_trace(tmp_path: Path) -> None:
    step = trained(rows=33)  # compiled while the modules are named
    with profile(activities=BOTH, with_modules=True) as taken:
        step()
    file = tmp_path / "trace.json"
    taken.export_chrome_trace(str(file))
    trace = json.loads(file.read_text())["traceEvents"]
    kernels = [each for each in trace if each.get("cat") == "kernel"]
    assert any(each["args"]["modules"] == "Sequential/Block/Linear" for each in kernels)
    assert any(f"{Path(__file__).name}:" in each["args"]["line"] for each in kernels)
    assert {"aten::linear"} <= {each["name"] for each in kernels} and all(each["dur"] >= 0 for each in kernels)
    lanes = {each["pid"] for each in trace if each.get("name") == "process_name" and each["pid"] == "xla:0"}
    assert lanes == {"xla:0"} == {each["pid"] for each in kernels}
    host = [each["ts"] for each in trace if each.get("cat") == "cpu_op"]
    assert min(host) < min(each["ts"] for each in kernels) < max(host) + 60e6
    assert "aten::linear" in {each["name"] for each in trace if each.get("cat") == "cpu_op"}


def modules_of_kernels(taken: Any, file: Path) -> dict[str, set[str]]:
    taken.export_chrome_trace(str(file))
    found: dict[str, set[str]] = {}
    for each in json.loads(file.read_text())["traceEvents"]:
        if each.get("cat") == "kernel":
            found.setdefault(each["name"], set()).add(each["args"]["modules"])
    return found


@pytest.mark.parametrize("eager", [False, True])
def test_modules_are_named_that_a_program_was_not_compiled_for(eager: bool, tmp_path: Path) -> None:
    """A program from before the profile has no modules; an operator in eager mode is one program for all modules."""

    class Scaled(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    model, x = torch.nn.Sequential(Block(), Scaled()).to("xla"), torch.randn(35, 96, device="xla")
    with torch_xla.experimental.eager_mode_context(eager), torch.no_grad():
        for _ in range(2):
            model(x).tolist()
        with profile(activities=BOTH, with_modules=True) as taken:
            model(x).tolist()
        found = modules_of_kernels(taken, tmp_path / "trace.json")
        assert {"Sequential/Block/Linear", "Sequential/Scaled/Linear"} == found["aten::linear"]
        if eager:
            assert {"Sequential/Block", "Sequential/Scaled"} == found["aten::relu"]
            assert found["aten::mul"] == {"Sequential/Scaled"}
        with profile(activities=BOTH) as taken:  # without modules again
            model(x).tolist()
        assert modules_of_kernels(taken, tmp_path / "later.json")["aten::linear"] == {""}


@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks")
@pytest.mark.parametrize("with_modules", [False, True])
def test_a_compiled_model_has_its_operators_and_modules(with_modules: bool, tmp_path: Path) -> None:
    """Those of a user's own modules, which have lines, and of PyTorch's, which have none; of backward too."""
    model = torch.nn.Sequential(Block(), torch.nn.Linear(96, 31)).to("xla")
    step, x = torch.compile(model, backend="openxla"), torch.randn(36, 96, device="xla")
    for _ in range(2):
        step(x).square().mean().backward()
        torch_xla.sync()
    with profile(activities=BOTH, with_modules=with_modules) as taken:
        with torch.profiler.record_function("forward of it"):
            loss = step(x).square().mean()
        loss.backward()
        torch_xla.sync()
    found = modules_of_kernels(taken, tmp_path / "trace.json")
    outer = "OptimizedModule/" if with_modules else ""
    assert found["aten::linear"] == {f"{outer}Sequential/Block/Linear", f"{outer}Sequential/Linear"}
    assert found["aten::linear_backward"] <= {"Sequential/Block/Linear", "Sequential/Linear"}
    # Operators inside of a graph count for the range that called it, though the program starts at the sync.
    (forward,) = (
        each for each in taken.events() if each.name == "forward of it" and each.device_type == DeviceType.CPU
    )
    of_forward = sum(event.device_time_total for event in of_device(taken) if event.name == "aten::linear")
    assert forward.device_time_total >= 0.99 * of_forward > 0


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_a_schedule_profiles_some_steps_and_writes_what_is_packed(tmp_path: Path) -> None:
    step = trained()
    step()
    counts = []

    def ready(taken: Any) -> None:
        counts.append(sum(event.name == "aten::linear_backward" for event in of_device(taken)))
        taken.export_chrome_trace(str(tmp_path / f"{len(counts)}.json.gz"))

    with profile(activities=BOTH, schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready) as p:
        for _ in range(8):
            step()
            p.step()
    assert len(counts) == 2 and all(counts)
    for number in (1, 2):
        trace = json.loads(gzip.decompress((tmp_path / f"{number}.json.gz").read_bytes()))
        assert any(each.get("cat") == "kernel" for each in trace["traceEvents"])


def test_events_that_accumulate_over_cycles_have_the_lane_too() -> None:
    step = trained()
    step()
    counts = []

    def ready(taken: Any) -> None:
        counts.append(len(of_device(taken)))

    with profile(schedule=schedule(wait=1, warmup=1, active=1, repeat=2), on_trace_ready=ready, acc_events=True) as p:
        for _ in range(6):
            step()
            p.step()
    assert len(counts) == 2 and 0 < counts[0] < counts[1] == len(of_device(p))


def test_a_module_may_end_a_step_while_modules_are_named(tmp_path: Path) -> None:
    class Cut(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (x * 2).cos()
            torch_xla.sync()
            return (y - 1).sin()

    x = torch.randn(37, device="xla")
    with profile(activities=BOTH, with_modules=True) as taken:
        found = torch.nn.Sequential(Cut())(x).cpu()
    torch.testing.assert_close(found, ((x.cpu() * 2).cos() - 1).sin())
    file = tmp_path / "trace.json"
    taken.export_chrome_trace(str(file))
    kernels = [each for each in json.loads(file.read_text())["traceEvents"] if each.get("cat") == "kernel"]
    modules = {each["name"]: each["args"]["modules"] for each in kernels}
    assert modules["aten::cos"] == modules["aten::sin"] == "Sequential/Cut"


@pytest.mark.parametrize(
    "run",
    [
        lambda f: torch_xla.compile(f),
        lambda f: torch_xla.compile(f, replay=True),
        lambda f: torch.compile(f, backend="openxla"),
    ],
    ids=["region", "replay", "openxla"],
)
def test_compiled_functions_are_in_the_lane(run: Callable[[Any], Any]) -> None:
    x = torch.randn(40, 40, device="xla")
    function = run(lambda: (x @ x).relu().sum())
    for _ in range(5):
        function()
    torch_xla.sync(wait=True)
    with profile(activities=BOTH) as taken:
        function()
    assert any("mm" in event.name or "matmul" in event.name for event in of_device(taken))


def test_eager_operations_are_in_the_lane() -> None:
    x = torch.randn(40, 40, device="xla")
    with torch_xla.experimental.eager_mode_context(True):
        (x @ x).tolist()
        with profile(activities=BOTH) as taken:
            (x @ x).relu()
    assert {"aten::mm", "aten::relu"} <= {event.name for event in of_device(taken)}


def test_the_cpu_alone_and_another_profile_go_on(tmp_path: Path) -> None:
    step = trained()
    with profile(activities=[ProfilerActivity.CPU]) as taken:
        step()
    assert not of_device(taken)
    jax.profiler.start_trace(tmp_path)
    try:
        with (
            pytest.warns(UserWarning, match="torch.profiler shows no lane of xla: JAX's profiler does not start"),
            profile(activities=BOTH) as taken,
        ):
            step()
    finally:
        jax.profiler.stop_trace()
    assert not of_device(taken) and list(tmp_path.rglob("*.xplane.pb"))


def test_an_error_ends_the_profile() -> None:
    step = trained()
    with pytest.raises(ZeroDivisionError), profile(activities=BOTH, with_modules=True):
        step()
        1 / 0  # noqa: B018
    with warnings.catch_warnings(), profile(activities=BOTH) as taken:
        warnings.simplefilter("error")
        step()
    assert of_device(taken)


@pytest.mark.parametrize("device", [None, "xla", "xla:0"])
def test_a_memory_timeline_of_xla_is_refused(device: str | None, tmp_path: Path) -> None:
    step = trained()
    with profile(activities=BOTH, record_shapes=True, profile_memory=True, with_stack=True) as taken:
        step()
        torch.ones(1000)
    asked = {"device": device} if device else {}
    with pytest.raises(NotImplementedError, match=r"torch.xla.memory._record_memory_history\(\).*_dump_snapshot"):
        taken.export_memory_timeline(str(tmp_path / "timeline.json"), **asked)
    assert not list(tmp_path.iterdir())
    with pytest.warns(FutureWarning, match="export_memory_timeline"):
        taken.export_memory_timeline(str(tmp_path / "timeline.json"), device="cpu")
    assert json.loads((tmp_path / "timeline.json").read_text())[0]
