"""Find where in the program something happens, from the stack at the time of an event."""

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import jax

from ...compat.names.torch import CALLS_OF_MODULES
from ...dispatch import cpu_fallback
from ...dispatch.register.aten_kernels import special_kernels
from ...metrics.events import Cause
from ...metrics.report import FALLBACK
from ...metrics.user_lines import Line, line_of

_PACKAGE = str(Path(__file__).parents[3]) + os.sep
_ENGINE = os.path.join(_PACKAGE, "_engine") + os.sep
_HIDDEN = (_ENGINE, os.path.dirname(os.path.abspath(jax.__file__)) + os.sep, "<frozen ")

_READ = "most likely user code trying to access tensor value before torch_xla.sync"
_FULL = "the recorded graph had become too long, and was run before the step's end"

_REGION = "torch_xla.compile"
_BEFORE_REGION = "torch_xla.compile clear the pending graph prior calling the target function"
# What is added to the name of a region, for the graph that was recorded before it.
_CLEARED = "_clear_pending"
_DYNAMO = "dynamo is executing a compiled program"
_DYNAMO_COMPILES = "dynamo is compiling a FX graph to HLO"

# Why a step ended: the first of these files and functions on the stack, from the inside out, up to those of others.
_REASONS = (
    ("_engine/compiled/region.py", "begin", _BEFORE_REGION),
    ("_engine/compiled/region.py", "end", _REGION),
    ("_engine/compiled/replay/replay.py", "", _REGION),
    ("_engine/compiled/replay/replayed_function.py", "__call__", _BEFORE_REGION),
    ("_engine/compiled/dynamo/backend.py", "", _DYNAMO),
    ("distributed/parallel_loader.py", "", "torch_xla.sync in parallel loader at step end"),
    ("_engine/diagnostics/profiles/profiler.py", "__exit__", "torch_xla.sync when exiting a profiler StepTrace region"),
    ("core/xla_model.py", "mark_step", "user mark_step"),
    ("", "", "user torch_xla.sync"),
)


@functools.cache
def _kernels() -> dict[CodeType, str]:
    """Return the operators whose kernels are functions of their own; operators that read values are among them."""
    names: dict[CodeType, set[str]] = {}
    for name, kernel in special_kernels().items():
        names.setdefault(kernel.__code__, set()).add(name.partition(".")[0])
    return {code: same.pop() for code, same in names.items() if len(same) == 1}


_FALLBACK = cpu_fallback.run.__code__


# The name of the graphs that are recorded outside of regions with a name, as the user has set it.
_graph_name = ""


def name_graphs(name: str) -> None:
    """Call the graphs that are recorded from now on `name`, where no region gives them one."""
    global _graph_name
    _graph_name = name


def current_graph_name() -> str:
    """Return the name that `name_graphs` gave."""
    return _graph_name


class CallSite(NamedTuple):
    """A place in the program, seen from inside the engine."""

    frames: tuple[Line, ...]  # those of the program, of PyTorch and of our public functions; the innermost first
    operator: str  # the operator at work, as in "equal"; "" if none is
    reason: str  # why a step ended, if it is ending
    graph: str  # what the user calls this part of the program; "" if nothing
    is_fallback: bool  # whether an operator runs on the CPU

    def cause(self, cause: Cause, compiling: bool = False) -> str:
        """Return why recorded operations are run, or a program is compiled for them, in one line."""
        if compiling and cause is Cause.SYNC and self.reason == _DYNAMO:
            return _DYNAMO_COMPILES
        return {Cause.READ: _READ, Cause.FULL: _FULL}.get(cause, self.reason)


def here() -> CallSite:
    """Return where the caller's thread is."""
    frames: list[Line] = []
    operator = reason = graph = ""
    is_fallback = False
    # Whether frames of this package, and of its callers, were met: frames further out are no reason.
    is_ours = is_asked = False
    kernels = _kernels()
    for frame in _stack(sys._getframe(1)):
        code = frame.f_code
        if code in kernels or code is _FALLBACK:
            is_fallback = code is _FALLBACK
            operator = short(frame.f_locals["name"]) if is_fallback else kernels[code]
            frames.clear()  # what a kernel calls of PyTorch is not the program
        if code.co_filename.startswith(_PACKAGE):
            is_ours = True
            if not is_asked:
                reason = reason or _reason_of(code)
                graph = graph or _graph_of(frame.f_locals.get("self"), reason)
        elif not code.co_filename.startswith(_HIDDEN):
            is_asked = is_ours
        if not code.co_filename.startswith(_HIDDEN) and code not in CALLS_OF_MODULES:
            frames.append(line_of(frame))
    return CallSite(tuple(frames), operator, reason or _REASONS[-1][2], graph or _graph_name, is_fallback)


def _graph_of(owner: object, reason: str) -> str:
    """Return the name of the graph that is ended for `reason`, if `owner` knows it: a region, or a call of one."""
    if reason not in (_REGION, _BEFORE_REGION):
        return ""
    name = getattr(getattr(owner, "region", owner), "name", "")
    if not isinstance(name, str) or not name:
        return ""
    return name + _CLEARED if reason == _BEFORE_REGION else name


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _reason_of(code: CodeType) -> str:
    path = code.co_filename.replace(os.sep, "/")
    for file, function, text in _REASONS[:-1]:
        if path.endswith(file) and function in ("", code.co_name):
            return text
    return ""


def short(operator: str) -> str:
    """Return an operator without its namespace, `equal`."""
    return operator.removeprefix(FALLBACK)


def text(line: Line) -> str:
    """Return a frame as in "step (train.py:31)"."""
    return f"{line[2]} ({line[0]}:{line[1]})"
