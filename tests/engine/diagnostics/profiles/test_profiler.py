"""Profiles: blocks, steps and modules on the host, operators and lines in the programs of the device."""

import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jax.profiler import ProfileData

import torch_xla
import torch_xla.debug.profiler as xp
from torch_xla._engine.diagnostics.logs import stack_places
from torch_xla._engine.diagnostics.profiles import listening
from torch_xla._engine.diagnostics.profiles import profiler as engine
from torch_xla._engine.metrics import events
from torch_xla._engine.step.named_scopes import open_scopes
from torch_xla._engine.step.pending_graph import graph_of
from torch_xla.debug import capture_profile
from torch_xla.debug import metrics as met
from torch_xla.distributed.parallel_loader import MpDeviceLoader


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)])
        self.act = torch.nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.act(layer(x))
        return x


def train(net: torch.nn.Module, x: torch.Tensor, steps: int) -> None:
    for number in range(steps):
        with xp.StepTrace("train", step_num=number):
            with xp.Trace("forward"):
                loss = net(x).square().mean()
            loss.backward()


def profile_file(folder: Path) -> Path:
    (found,) = folder.rglob("*.xplane.pb")
    return found


def host_events(folder: Path) -> Counter[str]:
    planes = ProfileData.from_file(str(profile_file(folder))).planes
    (host,) = [plane for plane in planes if plane.name == "/host:CPU"]
    return Counter(event.name for line in host.lines for event in line.events)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile of three steps of a net whose modules are named."""
    folder = tmp_path_factory.mktemp("profile")
    net, x = Block().to("xla"), torch.rand(64, 16).to("xla")
    torch_xla.sync()
    with xp.trace_modules(net, "net"):
        xp.start_trace(folder)
        train(net, x, 3)
        torch_xla.sync(wait=True)
        xp.stop_trace()
    return folder


def test_the_host_shows_steps_blocks_and_modules(profile: Path) -> None:
    events = host_events(profile)
    assert {name: events[name] for name in ("train", "forward", "net", "layers.0", "layers.1", "act")} == {
        "train": 3,
        "forward": 3,
        "net": 3,
        "layers.0": 3,
        "layers.1": 3,
        "act": 6,
    }


def test_steps_have_their_numbers(profile: Path) -> None:
    planes = ProfileData.from_file(str(profile_file(profile))).planes
    numbers = [
        dict(event.stats)["step_num"]
        for plane in planes
        for line in plane.lines
        for event in line.events
        if event.name == "train"
    ]
    assert sorted(map(int, numbers)) == [0, 1, 2]


def test_the_programs_in_the_profile_have_operators_blocks_and_lines(profile: Path) -> None:
    content = profile_file(profile).read_bytes()
    assert b"train/forward/net/layers.1/aten::linear" in content
    assert b"train/forward/net/act/aten::tanh" in content
    assert os.fsencode(__file__) in content


def test_xprof_reads_the_profile(profile: Path) -> None:
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="pip install xprof to read profiles with it")
    files = [str(profile_file(profile))]
    assert {"trace_viewer@", "overview_page", "memory_viewer", "graph_viewer"} <= set(
        convert.xspace_to_tool_names(files)
    )
    data, _ = convert.xspace_to_tool_data(files, "trace_viewer", {})
    events = json.loads(data)["traceEvents"]
    names = Counter(event.get("name") for event in events)
    assert {name: names[name] for name in ("train 0", "train 1", "train 2")} == dict.fromkeys(
        ("train 0", "train 1", "train 2"), 1
    )
    assert names["layers.0"] == 3
    operations = [event for event in events if "hlo_op" in event.get("args", {})]
    assert operations and all(event["args"]["hlo_module"].startswith("jit_program") for event in operations)


def test_the_time_of_the_device_by_operator_and_line(profile: Path) -> None:
    times = xp.operator_times(profile)
    found = {row.operator: row for row in times.rows}
    assert "train/forward/net/layers.1/aten::linear" in found, str(times)
    linear = found["train/forward/net/layers.1/aten::linear"]
    assert linear.line is not None and linear.line[0] == __file__ and linear.line[2] == "forward"
    assert linear.count >= 3 and linear.milliseconds > 0
    assert times.milliseconds == pytest.approx(sum(row.milliseconds for row in times.rows))
    milliseconds = [row.milliseconds for row in times.rows]
    assert milliseconds == sorted(milliseconds, reverse=True)
    head, first, *_ = str(times).splitlines()
    assert head.split() == ["ms", "%", "count", "operator", "line"]
    assert first.split()[0] == f"{milliseconds[0]:.3f}"


def test_where_there_is_no_profile_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="There is no profile in .*. One is written there by"):
        xp.operator_times(tmp_path)


def test_a_block_is_closed_when_it_raises() -> None:
    with pytest.raises(KeyError):
        with xp.Trace("outer"):
            with xp.Trace("inner"):
                assert open_scopes() == ("outer", "inner")
                raise KeyError
    assert open_scopes() == ()


def test_a_step_that_raises_is_not_run() -> None:
    x = torch.rand(3).to("xla")
    torch_xla.sync()
    met.clear_all()
    with pytest.raises(KeyError):
        with xp.StepTrace("train"):
            y = x.sin()
            raise KeyError
    assert met.counter_value("MarkStep") is None and open_scopes() == ()
    assert y.shape == (3,)


def test_a_step_ends_with_a_sync() -> None:
    x = torch.rand(3).to("xla")
    with xp.StepTrace("train"):
        y = x.cos()
    assert torch_xla._XLAC._check_tensor_need_materialization([y]) == [False]
    assert xp.get_tracer_marked_step()
    xp.set_tracer_marked_step(False)


def test_the_explanations_name_the_step_as_the_cause() -> None:
    causes: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, events.Evaluation):
            causes.append(stack_places.here().cause(event.cause))

    x = torch.rand(3).to("xla")
    torch_xla.sync()
    events.listen(listen)
    try:
        with xp.StepTrace("train"):
            y = x.sinh()
    finally:
        events.unlisten(listen)
    assert causes == ["torch_xla.sync when exiting a profiler StepTrace region"] and y.shape == (3,)


def test_steps_without_a_number_are_counted() -> None:
    numbers = [engine.StepTrace("counted")._metadata["step_num"] for _ in range(3)]
    assert numbers == [0, 1, 2]
    assert engine.StepTrace("counted", step_num=9)._metadata == {"step_num": 9, "_r": 1}


def test_a_loader_does_not_end_a_step_again() -> None:
    xp.set_tracer_marked_step(False)
    met.clear_all()
    for batch in MpDeviceLoader([torch.ones(2), torch.ones(2), torch.ones(2)], "xla"):
        with xp.StepTrace("train"):
            batch.add_(1)
    assert met.counter_value("MarkStep") == 1 + 3  # before the first batch, and after each by its own block


def test_a_loader_ends_what_was_recorded_behind_a_step() -> None:
    batches = iter(MpDeviceLoader([torch.ones(2), torch.ones(2)], "xla"))
    batch = next(batches)
    with xp.StepTrace("train"):
        batch.add_(1)
    later = batch * 2
    next(batches)
    assert torch_xla._XLAC._check_tensor_need_materialization([later]) == [False]


def test_a_decorated_function_is_a_block() -> None:
    @xp.trace_me("loss")
    def loss_of(x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        assert open_scopes() == ("loss",)
        return x.square().sum()

    y = loss_of(torch.rand(3).to("xla"))
    assert loss_of.__doc__ == "The loss." and loss_of.__name__ == "loss_of"
    assert "loss/aten::" in str(graph_of([y]).lowered().as_text("hlo", debug_info=True))


def test_names_of_modules_follow_the_calls_and_leave_with_the_block() -> None:
    net = torch.nn.Sequential(Block(), torch.nn.ModuleDict({"unused": torch.nn.ReLU()})["unused"]).to("xla")
    x = torch.rand(2, 16).to("xla")
    with xp.trace_modules(net):
        y = net(x)
    text = str(graph_of([y]).lowered().as_text("hlo", debug_info=True))
    assert "Sequential/0/layers.0/aten::linear" in text and "Sequential/1/aten::relu" in text
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_a_module_that_raises_closes_its_block() -> None:
    net = torch.nn.Linear(3, 3).to("xla")
    with xp.trace_modules(net):
        with pytest.raises(RuntimeError):
            net(torch.rand(2, 5).to("xla"))
        assert open_scopes() == ()
        net(torch.rand(2, 3).to("xla"))
    assert open_scopes() == ()


def test_pytorchs_profiler_shows_recorded_operators_and_blocks() -> None:
    net, x = torch.nn.Linear(4, 4).to("xla"), torch.rand(2, 4).to("xla")
    # Without `acc_events` PyTorch before 2.12 warns that events are kept for one cycle.
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        with xp.Trace("forward"):
            loss = net(x).sum()
        loss.backward()
        torch_xla.sync()
    names = {event.key for event in profiler.key_averages()}
    assert {"forward", "aten::linear", "aten::sum"} <= names, sorted(names)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return int(listening.getsockname()[1])


@pytest.fixture
def working() -> Iterator[None]:
    """Steps in the background, for a profiler to see."""
    net, x = Block().to("xla"), torch.rand(64, 16).to("xla")
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            train(net, x, 1)
            time.sleep(0.005)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    done.set()
    thread.join()


def test_a_running_program_is_profiled_through_its_server(tmp_path: Path, working: None) -> None:
    pytest.importorskip("xprof", reason="pip install xprof to ask a server for a profile")
    port = free_port()
    server = xp.start_server(port)
    assert server is not None
    xp.trace_detached(f"localhost:{port}", str(tmp_path), duration_ms=500).join(60)
    events = host_events(tmp_path)
    assert events["train"] >= 1 and events["forward"] >= 1


def devices_of(port: int) -> set[bytes]:
    """Return the network devices to which the sockets of this process that listen on `port` are bound."""
    found = set()
    for descriptor in listening._descriptors(listening.sockets(port)):
        with socket.socket(fileno=os.dup(descriptor)) as server:
            found.add(server.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0"))
    return found


def test_a_server_answers_this_machine_alone_unless_told() -> None:
    port = free_port()
    server = xp.start_server(port)
    assert server is not None and devices_of(port) == {b"lo"}
    server.stop()
    port = free_port()
    server = xp.start_server(port, address="0.0.0.0")
    assert server is not None and devices_of(port) == {b""}
    server.stop()
    with pytest.raises(ValueError, match=r"got address='10.0.0.1'; expected '127.0.0.1', for clients on this machine"):
        xp.start_server(port, address="10.0.0.1")


def test_a_server_that_cannot_be_restricted_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_descriptors", lambda of: ())
    port = free_port()
    with pytest.raises(RuntimeError, match=r"cannot be restricted .* was not found.*address='0.0.0.0'\) serves all"):
        xp.start_server(port)
    assert not listening.sockets(port)


def test_a_server_stops_with_its_object_and_another_may_start() -> None:
    def is_open(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("localhost", port)) == 0

    ports = [free_port(), free_port()]
    for port in (*ports, ports[0]):
        server = xp.start_server(port)
        assert is_open(port) and server.port == port and devices_of(port) == {b"lo"}
        with pytest.raises(ValueError, match="one profiler server"):
            xp.start_server(free_port())
        assert is_open(port)
        del server
        gc.collect()
        assert not is_open(port)


def test_without_xprof_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "xprof.convert._pywrap_profiler_plugin", None)
    with pytest.raises(ImportError) as caught:
        xp.trace("localhost:9012", "/tmp/profile")
    assert str(caught.value) == (
        "Asking a profiler server for a profile needs xprof, which also shows it: pip install xprof. Without it, take "
        "the profile in the program itself: torch_xla.debug.profiler.start_trace('/tmp/profile') and stop_trace()."
    )
    assert capture_profile.main(["--service_addr", "localhost:9012", "--logdir", "/tmp/profile"]) == 1
    assert "pip install xprof" in capsys.readouterr().err


def test_where_no_server_answers_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def request(*arguments: Any) -> None:
        asked.append(arguments)
        raise RuntimeError("UNAVAILABLE.")

    monkeypatch.setattr(engine.xprof, "request_profile", request)
    with pytest.raises(RuntimeError) as caught:
        xp.trace("localhost:9012", "/tmp/profile", duration_ms=7, timeout_s=0, interval_s=1, host_tracer_level=3)
    options = {"host_tracer_level": 3, "device_tracer_level": 1, "delay_ms": 0}
    assert asked == [("localhost:9012", "/tmp/profile", 7, 3, options)]
    assert str(caught.value) == (
        "The profiler server at localhost:9012 gave no profile within 0 s: UNAVAILABLE. The program must have called "
        "torch_xla.debug.profiler.start_server(9012) and must be at work while the profile is taken."
    )


@pytest.mark.slow
def test_the_command_tells_what_it_takes() -> None:
    command = [sys.executable, "-m", "torch_xla.debug.capture_profile", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "--service_addr" in done.stdout and "--duration_ms" in done.stdout


def test_names_of_steps_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_steps", {})
    monkeypatch.setattr(engine, "_MOST_NAMES", 4)
    for number in range(9):
        engine.StepTrace(f"step {number}")
    assert len(engine._steps) <= 4 and engine._steps["step 8"] == 0
