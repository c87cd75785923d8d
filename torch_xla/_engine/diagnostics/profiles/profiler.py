"""Profile host and device with JAX's profiler, for xprof and TensorBoard."""

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import jax
import torch

from ...caching.bounded import put_last
from ...compat.names import torch as private
from ...compat.names import xprof
from ...runtime import platform
from ...step.end_of_step import end_step
from ...step.named_scopes import close_scope, open_scope
from . import listening

Function = TypeVar("Function", bound=Callable[..., Any])

NEEDS_XPROF = (
    "Asking a profiler server for a profile needs xprof, which also shows it: pip install xprof. Without it, take the "
    "profile in the program itself: torch_xla.debug.profiler.start_trace({folder!r}) and stop_trace()."
)
NO_PROFILE = (
    "The profiler server at {address} gave no profile within {seconds} s: {reason}. The program must have called "
    "torch_xla.debug.profiler.start_server({port}) and must be at work while the profile is taken."
)


class Trace:
    """A block with a name: in profiles of the host, and in the names of the operations recorded in it."""

    def __init__(self, name: str, **metadata: object) -> None:
        self.name = name
        self._metadata = metadata
        self._span: Any = None
        self._span_of_torch: Any = None

    def __enter__(self) -> None:
        self._span = jax.profiler.TraceAnnotation(self.name, **self._metadata)
        self._span.__enter__()
        if private.profiler_is_running():
            self._span_of_torch = torch.profiler.record_function(self.name)
            self._span_of_torch.__enter__()
        open_scope(self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        close_scope()
        self._end_span(kind, error, traceback)

    def _end_span(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._span_of_torch is not None:
            self._span_of_torch.__exit__(kind, error, traceback)
            self._span_of_torch = None
        self._span.__exit__(kind, error, traceback)


# How many steps of a name there were.
_steps: dict[str, int] = {}
_MOST_NAMES = 1024


class StepTrace(Trace):
    """A `Trace` that is a step: it ends with a sync, and xprof takes it for one. Those without number are counted."""

    def __init__(self, name: str, **metadata: object) -> None:
        number = put_last(_steps, name, _steps.get(name, -1) + 1, _MOST_NAMES)
        metadata.setdefault("step_num", number)
        super().__init__(name, _r=1, **metadata)  # `_r`: xprof's mark for the root of a group of events

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        close_scope()
        try:
            if kind is None:
                end_step()
                set_step_ended(True)
        finally:
            self._end_span(kind, error, traceback)


_thread = threading.local()


def set_step_ended(value: bool) -> None:
    """Note whether a `StepTrace` of this thread has ended the current step already."""
    _thread.step_ended = value


def step_ended() -> bool:
    """Return whether a `StepTrace` of this thread has ended the current step already."""
    return bool(getattr(_thread, "step_ended", False))


def forget_step_ended() -> bool:
    """Return whether a `StepTrace` has ended the current step already, and reset that."""
    ended = step_ended()
    _thread.step_ended = False
    return ended


def traced(name: str) -> Callable[[Function], Function]:
    """Return a decorator: each call of the function is a `Trace`."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            with Trace(name):
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


@contextmanager
def module_traces(root: torch.nn.Module, name: str) -> Iterator[None]:
    """Make each call of `root` or of a module in it a `Trace` with the module's name, within a `with` block."""
    open_traces = threading.local()

    def hooks_of(label: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(module: torch.nn.Module, inputs: object) -> None:
            trace = Trace(label)
            trace.__enter__()
            open_traces.__dict__.setdefault("stack", []).append(trace)

        def after(module: torch.nn.Module, inputs: object, outputs: object) -> None:
            open_traces.stack.pop().__exit__(None, None, None)

        return before, after

    handles = []
    for module, label in _labels(root, name):
        before, after = hooks_of(label)
        handles.append(module.register_forward_pre_hook(before))
        handles.append(module.register_forward_hook(after, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _labels(root: torch.nn.Module, name: str) -> Iterator[tuple[torch.nn.Module, str]]:
    """Yield each module with its name inside the one that calls it. Lists and dicts of modules are not called."""
    seen: set[torch.nn.Module] = set()

    def visit(module: torch.nn.Module, label: str) -> Iterator[tuple[torch.nn.Module, str]]:
        if module in seen:
            return
        seen.add(module)
        is_container = isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict))
        if not is_container:
            yield module, label
        for own, child in module.named_children():
            yield from visit(child, f"{label}.{own}" if is_container else own)

    return visit(root, name)


_LOOPBACK = "127.0.0.1"
_EVERYWHERE = "0.0.0.0"


class ProfilerServer:
    """A server that takes profiles of this process on demand. It stops when this object is deleted."""

    def __init__(self, port: int, address: str = _LOOPBACK) -> None:
        if address not in (_LOOPBACK, _EVERYWHERE):
            raise ValueError(
                f"start_server got address={address!r}; expected {_LOOPBACK!r}, for clients on this machine, or "
                f"{_EVERYWHERE!r}, for all. JAX's server listens on all addresses or none."
            )
        platform.local_devices()  # JAX would start the client without our choice of platform
        before = listening.sockets(port)
        jax.profiler.start_server(port)
        self.port = port
        self.stop = weakref.finalize(self, jax.profiler.stop_server)
        self.stop.atexit = False  # the end of the process ends it, too
        if address == _LOOPBACK:
            self._restrict(before)

    def _restrict(self, before: set[str]) -> None:
        try:
            listening.restrict(listening.sockets(self.port) - before)
        except OSError as error:
            self.stop()
            raise RuntimeError(
                f"The profiler's server on port {self.port} cannot be restricted to this machine ({error}), and it "
                f"asks for no password. start_server(port, address={_EVERYWHERE!r}) serves all machines."
            ) from error


def start_trace(folder: str | os.PathLike[str], python_calls: bool) -> None:
    """Begin a profile of this process."""
    platform.local_devices()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(python_calls)
    jax.profiler.start_trace(folder, profiler_options=options)


def stop_trace() -> None:
    """End the profile and write it."""
    jax.profiler.stop_trace()


def capture(
    address: str, folder: str, milliseconds: int, attempts: int, options: dict[str, int], every: float, until: float
) -> None:
    """Let the server at `address` take a profile; ask again `every` seconds, `until` seconds have passed."""
    deadline = time.monotonic() + until
    while True:
        try:
            return xprof.request_profile(address.removeprefix("grpc://"), folder, milliseconds, attempts, options)
        except ImportError as error:
            raise ImportError(NEEDS_XPROF.format(folder=folder)) from error
        except RuntimeError as error:
            if time.monotonic() + every > deadline:
                port = address.rpartition(":")[2]
                text = NO_PROFILE.format(address=address, seconds=until, reason=str(error).rstrip("."), port=port)
                raise RuntimeError(text) from error
        time.sleep(every)
