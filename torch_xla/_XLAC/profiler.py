"""`torch_xla._XLAC.profiler`: what `torch_xla.debug.profiler` is made of, under the extension's names."""

from collections.abc import Mapping
from typing import Any

from .._engine import diagnostics as _diagnostics
from .._engine import step
from .._engine.compat import removed_names
from .._engine.diagnostics import ProfilerServer as ProfilerServer

__getattr__ = removed_names.asked_of(__name__)


class TraceMe(_diagnostics.Trace):
    """A block with a name, for a `with` statement; see `torch_xla.debug.profiler.Trace`."""


class scope_pusher:  # noqa: N801
    """A named scope that lasts as long as this object: operations recorded meanwhile carry its name.

    >>> import torch, torch_xla
    >>> scope = torch_xla._XLAC.profiler.scope_pusher("encoder")
    >>> x = torch.ones(2).to("xla") * 2
    >>> del scope
    >>> b"encoder/aten::mul" in torch_xla._XLAC._get_xla_tensors_hlo_proto([x])
    True
    """

    def __init__(self, name: str) -> None:
        step.open_scope(name)

    def __del__(self) -> None:
        step.close_scope()


def start_server(port: int) -> ProfilerServer:
    """Start a profiler server that lives as long as the result; see `torch_xla.debug.profiler.start_server`."""
    return ProfilerServer(port)


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    timeout_s: int = 120,
    interval_s: int = 5,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Ask the profiler server at `service_addr` for a profile; see `torch_xla.debug.profiler.trace`."""
    levels = {"host_tracer_level": 2, "device_tracer_level": 1, "delay_ms": 0, **(options or {})}
    known = {name: int(levels[name]) for name in ("host_tracer_level", "device_tracer_level", "delay_ms")}
    _diagnostics.capture_profile(service_addr, logdir, duration_ms, num_tracing_attempts, known, interval_s, timeout_s)
