"""Give `torch.profiler` a lane of the device: operators, modules and lines, with the time that the device took.

PyTorch's profiler takes device events from libraries in C++ alone. So while it profiles `xla`, JAX's profiler runs too,
and its operations of the device are added to PyTorch's events and to the trace that it exports.
"""

import functools
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import torch
from jax.profiler import ProfileData
from torch.autograd.profiler_util import FunctionEvent

from ...compat import patch_list
from ...compat.names import torch as private
from ...metrics import events
from ...metrics.user_lines import text
from ...step.named_scopes import Passing, close_scope, open_scope
from ...tensor import device as devices
from .host_event_times import add_device_times
from .operator_times import AROUND_OTHERS, UNKNOWN, without_deprecation
from .profile_programs import Origin, ProfilePrograms
from .started_programs import OperatorPlace, StartedProgram, modules_of

# The plane of a profile with the time at which it began.
_ENVIRONMENT = "Task Environment"
_NANOSECONDS = 1000

_NO_MEMORY_TIMELINE = (
    "export_memory_timeline({path!r}) has no events of {device!r}: PyTorch's profiler hears of allocations in C++ "
    "only. Call torch.xla.memory._record_memory_history() before the steps and "
    'torch.xla.memory._dump_snapshot("memory.pickle") after them, and open the file at pytorch.org/memory_viz. For '
    'memory of the host pass device="cpu".'
)


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """One operation that the device ran."""

    origin: Origin
    operation: str  # XLA's name of it
    program: str
    lane: str  # of the device: a stream, or a thread of the host
    start: float  # nanoseconds since the epoch
    duration: float
    modules: str  # and other blocks around the operator, "Sequential/Linear"

    @property
    def name(self) -> str:
        """The operator, without the blocks around it; XLA's name for what XLA put in by itself."""
        return self.origin.operator or self.operation


@dataclass(slots=True)
class _Recording:
    """The state of one run of PyTorch's profiler."""

    folder: Any
    handles: list[Any]
    operations: list[DeviceEvent] = field(default_factory=list)  # that the device ran
    runs: list[StartedProgram] = field(default_factory=list)
    epoch: int = field(default_factory=lambda: time.time_ns() - time.perf_counter_ns())  # where the runs' times begin

    def note(self, execution: events.Execution) -> None:
        """Keep what a program that was just started computes."""
        program, began = execution.program, self.epoch + execution.start * 1e9
        self.runs.append(StartedProgram(program.graph, program.origins.lines, began, execution.scopes))


def _recording_of(profile: object) -> _Recording | None:
    found: _Recording | None = getattr(profile, "_torch_xla", None)
    return found


def install() -> None:
    """Let PyTorch's profiler ask for the events of the device."""
    patch_list.profiler["config"].wrap(_with_kineto)
    patch_list.profiler["start_trace"].wrap(_starting)
    patch_list.profiler["exit"].wrap(_ending)
    patch_list.profiler["parse_kineto_results"].wrap(_with_device_events)
    patch_list.profiler["export_chrome_trace"].wrap(_with_device_lanes)
    patch_list.memory_timeline.wrap(_refusing_xla)


def _with_kineto(original: Callable[..., object]) -> Callable[..., object]:
    """Trace without markers in the device's queue, which `use_device="xla"` alone asks for and a C++ library makes."""

    @functools.wraps(original)
    def config(profile: Any, *args: object, **kwargs: object) -> object:
        if profile.profiler_kind == private.ProfilerState.KINETO_PRIVATEUSE1_FALLBACK:
            profile.profiler_kind = private.ProfilerState.KINETO_PRIVATEUSE1
        return original(profile, *args, **kwargs)

    return config


def _starting(original: Callable[[object], None]) -> Callable[[object], None]:
    @functools.wraps(original)
    def start(profile: Any) -> None:
        if profile.use_device == "xla" and devices.existing_devices():
            _begin(profile)
        original(profile)

    return start


def _begin(profile: Any) -> None:
    folder = tempfile.TemporaryDirectory(prefix="torch_xla_profile_")
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    try:
        jax.profiler.start_trace(folder.name, profiler_options=options)
    except RuntimeError as error:  # another profile is running
        folder.cleanup()
        warnings.warn(f"torch.profiler shows no lane of xla: JAX's profiler does not start ({error}).", stacklevel=4)
        return
    profile._torch_xla = recording = _Recording(folder, _name_modules() if profile.with_modules else [])
    events.listen(recording.note, frames=0, kinds=(events.Execution,))


def _name_modules() -> list[object]:
    """Put a block with the module's class around the operations of each module that is called."""

    def before(module: torch.nn.Module, inputs: object) -> None:
        open_scope(Passing(type(module).__name__))

    def after(module: torch.nn.Module, inputs: object, outputs: object) -> None:
        close_scope()

    hooks = torch.nn.modules.module
    return [
        hooks.register_module_forward_pre_hook(before),
        hooks.register_module_forward_hook(after, always_call=True),
    ]


def _ending(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def leave(profile: object, *error: object) -> object:
        recording = _recording_of(profile)
        try:
            return original(profile, *error)  # which waits for the device first
        finally:
            if recording is not None and recording.folder is not None:
                _end(recording)

    return leave


def _end(recording: _Recording) -> None:
    for handle in recording.handles:
        handle.remove()
    events.unlisten(recording.note)
    folder, recording.folder = recording.folder, None
    jax.profiler.stop_trace()
    with folder:
        for file in Path(folder.name).rglob("*.xplane.pb"):
            found = without_deprecation(list)(device_events(file.read_bytes()))
            recording.operations.extend(_with_modules(found, recording.runs))


def _with_modules(found: Sequence[DeviceEvent], runs: Sequence[StartedProgram]) -> Iterator[DeviceEvent]:
    """Name the modules that operations were recorded in this time, where they are known."""
    places = [(OperatorPlace.at(each.origin.recorded, each.origin.line), each.start) for each in found]
    for each, blocks in zip(found, modules_of(places, runs), strict=True):
        yield each if blocks is None else replace(each, modules="/".join((*blocks, *each.origin.modules_inside)))


def device_events(content: bytes) -> Iterator[DeviceEvent]:
    """Return the operations of the device in a profile of JAX's."""
    programs = ProfilePrograms(content)
    found: dict[tuple[str, str], list[tuple[str, str, float, float]]] = {}
    begin = 0
    for plane in ProfileData.from_serialized_xspace(content).planes:
        if plane.name == _ENVIRONMENT:
            begin = int(dict(plane.stats).get("profile_start_time", 0))
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    key = str(stats.get("hlo_module")), str(stats.get("program_id"))
                    lane = line.name or plane.name
                    found.setdefault(key, []).append((str(stats["hlo_op"]), lane, event.start_ns, event.duration_ns))
    for (module, number), operations in found.items():
        known = programs.origins(module, number, {name for name, *_ in operations})
        for name, lane, start, duration in operations:
            origin = known.get(name, UNKNOWN)
            if origin.opcode not in AROUND_OTHERS:
                # Times count from the beginning of the profile.
                start += begin if start < begin else 0
                modules = "/".join((*origin.blocks, *origin.modules_inside))
                yield DeviceEvent(origin, name, module, lane, start, duration, modules)


def _operations_of(recording: _Recording) -> Sequence[DeviceEvent]:
    if recording.folder is not None:  # `acc_events=True` reads the events when the profile has ended, but is not left
        _end(recording)
    return recording.operations


def _with_device_events(original: Callable[..., Any]) -> Callable[..., object]:
    @functools.wraps(original)
    def parse(profile: Any, result: Any, *args: object, **kwargs: object) -> object:
        found = original(profile, result, *args, **kwargs)
        recording = _recording_of(profile)
        if recording is None:
            return found
        begin, index = result.trace_start_ns(), devices.current_index()
        added = [
            (_function_event(-1 - number, each, begin, index, profile.use_device), each.origin)
            for number, each in enumerate(_operations_of(recording))
        ]
        add_device_times(found, added, recording.runs, begin)
        found.extend(event for event, _ in added)
        found.sort(key=lambda event: [event.time_range.start, -event.time_range.end])
        return found

    return parse


def _function_event(number: int, each: DeviceEvent, begin: int, index: int, device: str) -> FunctionEvent:
    """Return an operation of the device as an event of PyTorch's profiler."""
    start = (each.start - begin) / _NANOSECONDS
    return FunctionEvent(
        id=number,
        node_id=-1,
        name=each.name,
        overload_name="",
        trace_name=each.name,
        thread=0,
        start_us=start,
        end_us=start + each.duration / _NANOSECONDS,
        fwd_thread=0,
        input_shapes=[],
        stack=[text(each.origin.line)] if each.origin.line else [],
        scope=0,
        use_device=device,
        is_async=False,
        sequence_nr=-1,
        device_type=private.DeviceType.PrivateUse1,
        device_index=index,
        device_resource_id=0,
    )


def _with_device_lanes(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def export(profile: object, path: str, *args: object, **kwargs: object) -> Any:
        done = original(profile, path, *args, **kwargs)
        recording = _recording_of(profile)
        found = () if recording is None else _operations_of(recording)
        if found:
            file = Path(path)
            trace = json.loads(file.read_text())
            trace["traceEvents"].extend(_lanes(found, int(trace.get("baseTimeNanoseconds", 0))))
            file.write_text(json.dumps(trace))
        return done

    return export


def _refusing_xla(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def export(profile: Any, path: str, device: str | None = None) -> None:
        asked = device or profile.use_device
        if asked is not None and torch.device(asked).type == "xla":
            raise NotImplementedError(_NO_MEMORY_TIMELINE.format(path=path, device=asked))
        original(profile, path, device)

    return export


def _lanes(found: Sequence[DeviceEvent], base: int) -> Iterator[dict[str, object]]:
    """Return operations as events of a trace in Chrome's format."""
    process = f"xla:{devices.current_index()}"
    lanes = {lane: number for number, lane in enumerate(sorted({each.lane for each in found}))}
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": process}}
    yield {
        "ph": "M",
        "name": "process_labels",
        "pid": process,
        "tid": 0,
        "args": {"labels": "operations of the device"},
    }
    for lane, number in lanes.items():
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": lane}}
    for each in found:
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": each.name,
            "pid": process,
            "tid": lanes[each.lane],
            "ts": (each.start - base) / _NANOSECONDS,
            "dur": each.duration / _NANOSECONDS,
            "args": {
                "modules": each.modules,
                "line": text(each.origin.line) if each.origin.line else "",
                "operation": each.operation,
                "program": each.program,
            },
        }
