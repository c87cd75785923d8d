"""Where the host's time goes: recording by module, starting, waiting, and how long the device idled.

At every transition (a module begins or ends, backward, an optimizer's step, an event of the engine) the time since
the last one belongs to the innermost part that is open. So nothing is counted twice, and the parts add up.
"""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import jax
import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from ...dispatch.register import torch_patches
from ...ir.call_plan import Plan
from ...ir.tape import Tape
from ...metrics import events
from ...metrics.events import Compilation, Direction, Evaluation, Execution, StepEnd, Transfer, Wait
from ...step import in_flight
from ...tensor import device as devices


@dataclass(slots=True)
class Part:
    """A part of the user's program: a module, backward, an optimizer's step, or the code outside of them."""

    name: str
    depth: int = 0
    calls: int = 0
    seconds: float = 0.0  # of recording, without the parts within it
    operations: int = 0  # recorded by it, without the parts within it
    parts: dict[str, "Part"] = field(default_factory=dict)

    def within(self) -> Iterator["Part"]:
        """Yield this part and those within it, outer ones first."""
        yield self
        for part in self.parts.values():
            yield from part.within()

    @property
    def total_seconds(self) -> float:
        """With the parts within it."""
        return sum(part.seconds for part in self.within())

    @property
    def total_operations(self) -> int:
        """With the parts within it."""
        return sum(part.operations for part in self.within())


@dataclass(slots=True)
class HostProfile:
    """Result of a profile, in seconds. `print` it."""

    seconds: float = 0.0  # of the whole block
    steps: int = 0
    program: Part = field(default_factory=lambda: Part("outside of modules"))
    compiling: float = 0.0
    starting: float = 0.0  # looking programs up and starting them
    waiting: float = 0.0  # for the device
    uploading: float = 0.0
    busy: float = 0.0  # of the device

    @property
    def recording(self) -> float:
        """Python and PyTorch: the user's program and the recording of its operations."""
        return self.program.total_seconds

    @property
    def idle(self) -> float:
        """Return the seconds in which the device was idle."""
        return max(0.0, self.seconds - self.busy)

    def __str__(self) -> str:
        steps = max(1, self.steps)
        whole = self.seconds or 1.0

        def row(name: str, seconds: float, rest: str = "") -> str:
            return f"  {seconds / steps * 1e3:9.3f} {seconds / whole:6.1%}  {name}{rest}\n"

        text = f"{self.steps} steps, {self.seconds / steps * 1e3:.3f} ms each\n"
        text += f"  {'ms a step':>9} {'share':>6}  the host\n"
        text += row("recording", self.recording, f": {self.program.total_operations / steps:.0f} operations a step")
        text += row("starting programs", self.starting)
        text += row("compiling", self.compiling)
        text += row("waiting for the device", self.waiting)
        text += row("uploading", self.uploading)
        text += f"  {'':9} {'':6}  the device\n" + row("busy", self.busy) + row("idle", self.idle)
        text += f"  {'ms a step':>9} {'alone':>9} {'operations':>10} {'calls':>6}  recording by part\n"
        for part in self.program.within():
            text += (
                f"  {part.total_seconds / steps * 1e3:9.3f} {part.seconds / steps * 1e3:9.3f}"
                f" {part.total_operations / steps:10.0f} {part.calls / steps:6.0f}  {'  ' * part.depth}{part.name}\n"
            )
        return text


class _Profiler:
    def __init__(self) -> None:
        self.profile = HostProfile()
        self.thread = threading.get_ident()
        self.stack = [self.profile.program]
        self.names: dict[torch.nn.Module, str] = {}
        self.tape: Tape = self._device().tape
        self.position = len(self.tape.code)
        # Reported before the evaluation they are part of.
        self.within: list[Compilation | Wait] = []
        self.watcher = _DeviceWatcher()
        self.began = self.last = time.perf_counter()
        self.watcher.watch(self.began)  # what was started before and still runs

    @staticmethod
    def _device() -> devices.Device:
        return devices.device_at(devices.current_index())

    def advance(self) -> None:
        """Add the time and the operations since the last transition to the innermost part."""
        now = time.perf_counter()
        part = self.stack[-1]
        part.seconds += now - self.last
        tape = self._device().tape
        if tape is not self.tape:
            part.operations += _operations(self.tape.code[self.position :])
            self.tape, self.position = tape, 0
        if len(tape.code) > self.position:
            part.operations += _operations(tape.code[self.position :])
            self.position = len(tape.code)
        self.last = time.perf_counter()

    def push(self, name: str) -> None:
        if threading.get_ident() != self.thread:
            return
        self.advance()
        outer = self.stack[-1]
        part = outer.parts.get(name)
        if part is None:
            part = outer.parts[name] = Part(name, outer.depth + 1)
        part.calls += 1
        self.stack.append(part)

    def pop(self) -> None:
        if threading.get_ident() == self.thread and len(self.stack) > 1:
            self.advance()
            self.stack.pop()

    def before_module(self, module: torch.nn.Module, args: object) -> None:
        name = self.names.get(module)
        if name is None:
            for path, inner in module.named_modules():
                self.names.setdefault(inner, f"{path.rpartition('.')[2]} ({type(inner).__name__})" if path else "")
            name = self.names[module] = self.names[module] or type(module).__name__
        self.push(name)

    def after_module(self, module: torch.nn.Module, args: object, output: object) -> None:
        self.pop()

    def before_optimizer(self, optimizer: object, args: object, kwargs: object) -> None:
        self.push(f"{type(optimizer).__name__}.step")

    def after_optimizer(self, optimizer: object, args: object, kwargs: object) -> None:
        self.pop()

    def around_backward(self, begins: bool) -> None:
        if begins:
            self.push("backward")
        else:
            self.pop()

    def hear(self, event: object) -> None:
        if isinstance(event, Execution):
            self.watcher.watch(event.start + event.seconds)
        if threading.get_ident() != self.thread:
            return
        self.advance()
        profile = self.profile
        if isinstance(event, Compilation):
            self.within.append(event)
            self._take(event.seconds, "compiling")
        elif isinstance(event, Wait):
            if not event.asked:
                self.within.append(event)
            self._take(event.seconds, "waiting")
        elif isinstance(event, Evaluation):
            inner = sum(each.seconds for each in self.within if each.start >= event.start)
            self.within.clear()
            self._take(event.seconds - inner, "starting")
        elif isinstance(event, Transfer):
            self._take(event.seconds, "waiting" if event.direction is Direction.FROM_DEVICE else "uploading")
        elif isinstance(event, StepEnd):
            profile.steps += 1

    def _take(self, seconds: float, what: str) -> None:
        """Move time that `advance` gave to the innermost part to where it belongs."""
        self.stack[-1].seconds -= seconds
        setattr(self.profile, what, getattr(self.profile, what) + seconds)


class _DeviceWatcher:
    """Waits, in a thread of its own, for the end of every program, and adds up how long the device had one."""

    def __init__(self) -> None:
        self.busy = 0.0
        self._until = 0.0
        self._queue: queue.SimpleQueue[tuple[float, object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="torch_xla device watcher", daemon=True)
        self._thread.start()

    def watch(self, start: float) -> None:
        """Note that the program started last began to run at `start`."""
        self._queue.put((start, in_flight.last_ends()))

    def end(self) -> float:
        """Return the seconds in which the device had something to do; returns when it has done it."""
        self._queue.put(None)
        self._thread.join()
        return self.busy

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            start, output = entry
            try:
                jax.block_until_ready(output)  # nothing to wait for is there at once
            except RuntimeError:
                # Donated to the next program, which ends later; or failed, which is reported elsewhere.
                self._until = min(max(self._until, start), time.perf_counter())
                continue
            end = time.perf_counter()
            self.busy += max(0.0, end - max(start, self._until))
            self._until = end


def _operations(code: Sequence[object]) -> int:
    return sum(entry.__class__ is Plan for entry in code)


@contextmanager
def profiled() -> Iterator[HostProfile]:
    """Profile the block; the profile is complete at its end."""
    profiler = _Profiler()
    handles = [
        modules.register_module_forward_pre_hook(profiler.before_module),
        modules.register_module_forward_hook(profiler.after_module, always_call=True),
        optimizers.register_optimizer_step_pre_hook(profiler.before_optimizer),
        optimizers.register_optimizer_step_post_hook(profiler.after_optimizer),
    ]
    torch_patches.around_backward.append(profiler.around_backward)
    events.listen(profiler.hear)
    try:
        yield profiler.profile
    finally:
        events.unlisten(profiler.hear)
        torch_patches.around_backward.remove(profiler.around_backward)
        for handle in handles:
            handle.remove()
        profiler.advance()
        profiler.profile.seconds = time.perf_counter() - profiler.began
        profiler.profile.busy = min(profiler.watcher.end(), profiler.profile.seconds)
