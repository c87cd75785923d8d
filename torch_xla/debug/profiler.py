"""Profiles of host and device, for xprof and TensorBoard's profile plugin.

    import torch_xla.debug.profiler as xp

    xp.start_trace("/tmp/profile")
    for step, (images, labels) in enumerate(loader):
        with xp.StepTrace("train", step_num=step):
            with xp.Trace("forward"):
                loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
    xp.stop_trace()

`pip install xprof`, then `xprof /tmp/profile`, shows the steps, the threads of the host with the blocks named here, and
the device's operations with the PyTorch operator, the named blocks and the line of your program each comes from.

Names and lines are metadata of a program and not part of its key: naming a block does not compile a step again. A step
shows the names of the time when it was compiled.
"""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

from .._engine import diagnostics as _diagnostics
from .._engine import processes as _processes
from .._engine.diagnostics import OperatorTimes as OperatorTimes

Function = TypeVar("Function", bound=Callable[..., Any])


def set_tracer_marked_step(value: bool) -> None:
    """Note whether a `StepTrace` has ended the current step already, so that a loader need not.

    >>> import torch_xla.debug.profiler as xp
    >>> xp.set_tracer_marked_step(False)
    """
    _diagnostics.set_step_ended(value)


def get_tracer_marked_step() -> bool:
    """Return whether a `StepTrace` has ended the current step already.

    >>> import torch_xla.debug.profiler as xp
    >>> with xp.StepTrace("train"):
    ...     pass
    >>> xp.get_tracer_marked_step()
    True
    >>> xp.set_tracer_marked_step(False)
    """
    return _diagnostics.step_ended()


def start_server(port: int, only_on_master: bool = True, address: str = "127.0.0.1") -> object:
    """Start a server at `port` from which profiles of this process can be asked for: by `trace()`, by
    `python -m torch_xla.debug.capture_profile`, or by xprof's page.

    Keep the result: when it is deleted the server stops, and another can be started. With `only_on_master`, processes
    other than the first start none and get `None`. Starts the device. Raises `ValueError` if a server runs already.

    Only clients on this machine can connect. `address="0.0.0.0"` serves all machines: on a private network only, since
    the server asks for no password and a profile has names of functions and files.

    >>> import torch_xla.debug.profiler as xp
    >>> server = xp.start_server(9012)  # doctest: +SKIP
    """
    if only_on_master and _processes.local_replica_index() != 0:
        return None
    return _diagnostics.ProfilerServer(port, address)


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    host_tracer_level: int = 2,
    device_tracer_level: int = 1,
    delay_ms: int = 0,
    timeout_s: int = 120,
    interval_s: int = 5,
) -> None:
    """Ask the profiler server at `service_addr`, such as "localhost:9012", for a profile, and writes it to `logdir`.

    The profile lasts `duration_ms` milliseconds and begins `delay_ms` milliseconds from now. If nothing happened in
    that time it is tried `num_tracing_attempts` times; if no server answers, every `interval_s` seconds until
    `timeout_s` have passed. Levels: 0 is off; 3 of the host shows the most.

    Needs `xprof`: raises `ImportError` without it. Raises `RuntimeError` if there is no profile after all attempts.

    >>> import torch_xla.debug.profiler as xp
    >>> xp.trace("localhost:9012", "/tmp/profile", duration_ms=2000)  # doctest: +SKIP
    """
    options = {
        "host_tracer_level": host_tracer_level,
        "device_tracer_level": device_tracer_level,
        "delay_ms": delay_ms,
    }
    _diagnostics.capture_profile(
        service_addr, os.fspath(logdir), duration_ms, num_tracing_attempts, options, interval_s, timeout_s
    )


def trace_detached(*args: object, **kwargs: object) -> threading.Thread:
    """Run `trace()` in a thread of its own and return the thread: the program profiles itself and continues.

    >>> import torch_xla.debug.profiler as xp
    >>> thread = xp.trace_detached("localhost:9012", "/tmp/profile", duration_ms=2000)  # doctest: +SKIP
    """
    thread = threading.Thread(target=trace, args=args, kwargs=kwargs, name="trace_detached", daemon=True)
    thread.start()
    return thread


class Trace(_diagnostics.Trace):
    """A block with a name, for a `with` statement.

    Profiles show when the host was in it, and the device's operations that were recorded in it carry the name, as in
    "encoder/attention/aten::softmax". Blocks may be nested. A step ends outside of them: `sync()` in a block
    raises `RuntimeError`. Keyword arguments are shown with the block. Costs 5 µs; operations cost nothing more.

    >>> import torch, torch_xla.debug.profiler as xp
    >>> x = torch.ones(2, device="xla")
    >>> with xp.Trace("double"):
    ...     y = x + x
    """


class StepTrace(_diagnostics.StepTrace):
    """A block that is one step, for a `with` statement: it ends with `torch_xla.sync()`, and profiles count it.

    `step_num=...` gives the step its number; without it, steps of the same name are counted. If the block raises, what
    it recorded stays recorded.

    >>> import torch, torch_xla.debug.profiler as xp
    >>> x = torch.ones(2, device="xla")
    >>> for number in range(3):
    ...     with xp.StepTrace("train", step_num=number):
    ...         x = x * 2
    """


def trace_me(scope: str) -> Callable[[Function], Function]:
    """Return a decorator that makes each call of a function a `Trace` with the name `scope`.

    >>> import torch, torch_xla.debug.profiler as xp
    >>> @xp.trace_me("loss")
    ... def loss_of(x):
    ...     return x.square().mean()
    >>> loss_of(torch.ones(2, device="xla")).item()
    1.0
    """
    return _diagnostics.traced_for_profile(scope)


def trace_modules(module: torch.nn.Module, name: str | None = None) -> AbstractContextManager[None]:
    """Make each call of `module`, and of every module in it, a `Trace` with the module's name, within a `with` block.

    The names are nested as the calls are: "Net/encoder/layers.0/attention". `name` is that of `module`
    itself, by default its class. Each call of a module costs about 10 µs while the block lasts.

    >>> import torch, torch_xla.debug.profiler as xp
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()).to("xla")
    >>> with xp.trace_modules(net):
    ...     y = net(torch.ones(1, 2, device="xla"))
    """
    return _diagnostics.module_traces(module, type(module).__name__ if name is None else name)


def operator_times(log_dir: os.PathLike[str] | str) -> OperatorTimes:
    """Return the device's time by PyTorch operator and line of your program, from the latest profile below `log_dir`.

    Printed, the result is a table of the slowest ones; `rows` has all, each with `operator` (and the blocks
    around it), `line`, `milliseconds` and `count`. An operation that XLA fused of several counts for the last of
    them. On a CPU, operations of several threads add up to more than the elapsed time.

    Raises `FileNotFoundError` if there is no profile.

    >>> import tempfile, torch, torch_xla.debug.profiler as xp
    >>> folder, x = tempfile.mkdtemp(), torch.rand(300, 300).to("xla")
    >>> xp.start_trace(folder)
    >>> with xp.Trace("square"):
    ...     y = (x @ x).sum().item()
    >>> xp.stop_trace()
    >>> any(row.operator.startswith("square/aten::") for row in xp.operator_times(folder).rows)
    True
    """
    return _diagnostics.operator_times(log_dir)


def start_trace(log_dir: os.PathLike[str] | str, python_calls: bool = False) -> None:
    """Begin a profile of this process; `stop_trace()` ends it and writes it to `log_dir`.

    With `python_calls` it shows every call of a Python function too, which makes the host several times slower. Starts
    the device. Raises `RuntimeError` if a profile is being taken already.

    >>> import tempfile, torch, torch_xla.debug.profiler as xp
    >>> folder = tempfile.mkdtemp()
    >>> xp.start_trace(folder)
    >>> torch.ones(2, device="xla").sum().item()
    2.0
    >>> xp.stop_trace()
    """
    _diagnostics.start_trace(log_dir, python_calls)


def stop_trace() -> None:
    """End the profile that `start_trace()` began and writes it. Raises `RuntimeError` if there is none.

    >>> import torch_xla.debug.profiler as xp
    >>> xp.stop_trace()
    Traceback (most recent call last):
    RuntimeError: No profile started
    """
    _diagnostics.stop_trace()
