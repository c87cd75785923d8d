"""Graphs of `torch.xla`, written as those of CUDA: `XLAGraph`, `graph`. `torch.accelerator.Graph` is one too.

Each step of recorded operations is one program already. A graph saves recording them: a replay starts the program on
what the memory of its tensors holds.
"""

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...compat import patch_list
from ...metrics.observers import observers
from ...step import Capture, CapturedGraph, is_capturing
from ...tensor import device as devices
from ...tensor.torch_generator import state_of
from .. import recording_kernel
from .torch_accelerator import is_ours, native

_MODES = ("default", "global", "thread_local", "relaxed")
_pools = itertools.count(1)


def graph_pool_handle() -> tuple[int, int]:
    """Return a name for a pool of memory. PJRT shares all memory among all programs, so a pool changes nothing."""
    return 0, next(_pools)


class XLAGraph:
    """Operations that were captured, to be replayed on the memory that they read and wrote.

    >>> import torch, torch_xla
    >>> x = torch.zeros(3, device="xla")
    >>> graph = torch.xla.XLAGraph()
    >>> with torch.xla.graph(graph):
    ...     y = x * 2 + 1
    >>> x.fill_(4.0).numel()
    3
    >>> graph.replay()
    >>> y
    tensor([9., 9., 9.], device='xla:0')
    """

    def __init__(
        self, keep_graph: bool = False, *, pool: tuple[int, int] | None = None, capture_error_mode: str = "default"
    ) -> None:
        self.graph_pool = pool
        self.capture_error_mode = _known(capture_error_mode)
        self._keeps = keep_graph
        self._pool: tuple[int, int] | None = None
        self._generators: list[Any] = []
        self._capture: Capture | None = None
        self._graph: CapturedGraph | None = None
        self._runs_at_once: Any = None
        self._is_debugged = False

    def capture_begin(self, pool: tuple[int, int] | None = None, capture_error_mode: str | None = None) -> None:
        """Record what follows on the current device, without running it."""
        mode = _known(capture_error_mode or self.capture_error_mode)
        if self._capture is not None or self._graph is not None:
            raise RuntimeError("capture_begin: this graph has been captured already. Make another, or call reset()")
        self._pool = pool or self.graph_pool or self._pool or graph_pool_handle()
        device = devices.device_at(devices.current_index())
        capture = Capture(device, self._generators, mode in ("thread_local", "relaxed"))
        capture.begin()
        self._capture = capture
        self._runs_at_once = observers.run_call
        recording_kernel.run_at_once(None)

    def capture_end(self) -> None:
        """End the capture, and compile the program unless the graph was made with `keep_graph=True`."""
        capture = self._capture
        if capture is None:
            raise RuntimeError("capture_end: no capture was begun with this graph")
        try:
            self._graph = capture.end()
        finally:
            self._leave()
        graph = self._graph
        if not graph.pending.graph.operations and not graph.moved:
            warnings.warn("The XLA graph is empty: nothing was computed on its device.", stacklevel=2)
        if not self._keeps:
            self.instantiate()

    def _leave(self) -> None:
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.leave()
            recording_kernel.run_at_once(self._runs_at_once)

    def instantiate(self) -> None:
        """Compile the program."""
        self._captured("instantiate").prepare()

    def replay(self) -> None:
        """Run what was captured on what its memory holds now."""
        self._captured("replay").replay()

    def _captured(self, asked: str) -> CapturedGraph:
        if self._graph is None:
            raise RuntimeError(f"{asked}: there is no captured graph. Capture one by `with torch.xla.graph(graph):`")
        return self._graph

    def reset(self) -> None:
        """Forget the graph. Another can be captured then."""
        self._leave()
        self._graph = None

    def pool(self) -> tuple[int, int]:
        """Return the name of its pool of memory."""
        if self._pool is None:
            self._pool = self.graph_pool or graph_pool_handle()
        return self._pool

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let captured operations draw with a generator: each replay draws with it anew."""
        state = state_of(generator)
        if state is None:
            raise RuntimeError(f"register_generator_state: expected a generator of xla, got one of {generator.device}")
        self._generators.append(state)

    def enable_debug_mode(self) -> None:
        """Let `debug_dump` write."""
        self._is_debugged = True

    def debug_dump(self, debug_path: str) -> None:
        """Write the captured graph to a file, as StableHLO."""
        if not self._is_debugged:
            warnings.warn("debug_dump writes nothing: call enable_debug_mode() before the capture", stacklevel=2)
            return
        Path(debug_path).write_text(self._captured("debug_dump").pending.lowered().as_text())

    def __enter__(self) -> None:
        self.capture_begin()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.capture_end()
        else:
            self._leave()  # the error in the block is what the program hears of


def _known(mode: str) -> str:
    if mode not in _MODES:
        raise RuntimeError(f"capture_error_mode={mode!r}: expected one of {', '.join(map(repr, _MODES))}")
    return mode


class graph:  # noqa: N801
    """A `with` block whose operations are captured in a graph; `stream` changes nothing, as a device has one."""

    def __init__(
        self,
        xla_graph: XLAGraph,
        pool: tuple[int, int] | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self.xla_graph = xla_graph
        self.pool = pool
        self.capture_error_mode = capture_error_mode

    def __enter__(self) -> None:
        self.xla_graph.capture_begin(self.pool, self.capture_error_mode)

    def __exit__(self, *raised: object) -> None:
        self.xla_graph.__exit__(*raised)


def is_current_stream_capturing() -> bool:
    """Return whether operations on the current device are being captured."""
    return is_capturing() and is_capturing(devices.device_at(devices.current_index()))


def answer() -> None:
    """Make `torch.accelerator.Graph(...)` a graph of `xla` where that is the accelerator."""
    patch_list.accelerator_graph.wrap(_of_the_accelerator)


def _of_the_accelerator(original: Callable[..., Any]) -> object:
    def made(cls: type, *args: Any, **kwargs: Any) -> object:
        if is_ours():
            return XLAGraph(*args, **kwargs)
        if native() is None:
            raise RuntimeError(
                "torch.accelerator.Graph(): xla is not the accelerator of this process yet. Make a tensor on it first, "
                "set PJRT_DEVICE, or call torch.xla.XLAGraph()."
            )
        return original(cls, *args, **kwargs)

    return staticmethod(made)


# The members of `torch.xla` in this module.
MEMBERS: dict[str, object] = {
    thing.__name__: thing for thing in (XLAGraph, graph, graph_pool_handle, is_current_stream_capturing)
}
