"""Watches one call of a function: what does it besides recording operations, and on which line?

Only the few calls from which a replay is made are watched; a profile function makes them some times slower.
"""

import builtins
import gc
import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch

from ..metrics import events, lines
from ..metrics.events import Direction
from ..metrics.lines import Line
from .reach import Difference

_EFFECTS: dict[Any, str] = {
    print: "prints",
    input: "reads the keyboard",
    open: "opens a file",
    builtins.next: "takes the next element of an iterator",
    time.time: "looks at the clock",
    time.time_ns: "looks at the clock",
    time.monotonic: "looks at the clock",
    time.perf_counter: "looks at the clock",
    time.perf_counter_ns: "looks at the clock",
    time.sleep: "sleeps",
}

_GENERATORS = ("Python's `random`", "NumPy", "PyTorch on the CPU")

_LOG = logging.Logger._log.__code__


class Watch:
    """A `with` block around one call. Afterwards `reasons` says what a replay would leave out, each with its line."""

    def __init__(self, suspects: Sequence[Difference] = ()) -> None:
        self.reasons: list[str] = []
        self.uploads: list[Line] = []
        self.complete = True  # whether a profiler or debugger of the user's kept us from looking
        self._suspects = list(suspects)
        self._culprits: dict[str, Line] = {}

    def __enter__(self) -> "Watch":
        self._thread = threading.get_ident()
        # Whose finalisers and callbacks a collection would run in the middle of the call is chance.
        self._collects = gc.isenabled()
        gc.disable()
        self._states = _random_states()
        events.guard(self._heard)
        self.complete = sys.getprofile() is None and (not self._suspects or sys.gettrace() is None)
        if self.complete:
            if self._suspects:
                self._tokens = [_token(each.read) for each in self._suspects]
                self._last: Line | None = None
                sys.settrace(self._trace)
            sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        if self.complete:
            sys.setprofile(None)
            if self._suspects:
                sys.settrace(None)
                self._look(None)
        events.unguard(self._heard)
        if self._collects:
            gc.enable()
        for name, before, after in zip(_GENERATORS, self._states, _random_states(), strict=True):
            if before != after:
                self.reasons.append(f"it draws random numbers of {name}")

    def line_of(self, path: str) -> Line | None:
        """The line that changed the suspect with this path."""
        return self._culprits.get(path)

    def _heard(self, event: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if isinstance(event, events.Evaluation):
            self.reasons.append(_at(_CAUSES[event.cause], event.frames[0]))
        elif isinstance(event, events.Transfer):
            if event.direction is Direction.TO_DEVICE:
                self.uploads.append(event.frames[0])
            else:
                self.reasons.append(_at("it reads a value on the host", event.frames[0]))

    def _profile(self, frame: FrameType, kind: str, called: Any) -> None:
        if kind == "c_call":
            try:
                effect = _EFFECTS.get(called)
            except TypeError:
                return
            if effect is not None and lines.belongs_to_user(frame.f_code.co_filename):
                self.reasons.append(_at(f"it {effect}", lines.line_of(frame)))
        elif kind == "call" and frame.f_code is _LOG:
            caller = frame.f_back
            while caller is not None and caller.f_code.co_filename == _LOG.co_filename:
                caller = caller.f_back
            if caller is not None and lines.belongs_to_user(caller.f_code.co_filename):
                self.reasons.append(_at("it logs", lines.line_of(caller)))

    def _trace(self, frame: FrameType, kind: str, argument: Any) -> Callable[..., Any] | None:
        if not lines.belongs_to_user(frame.f_code.co_filename):
            return None
        if kind != "return":
            self._look(lines.line_of(frame))
        return self._trace

    def _look(self, line: Line | None) -> None:
        for index, suspect in enumerate(self._suspects):
            token = _token(suspect.read)
            if token != self._tokens[index]:
                self._tokens[index] = token
                if self._last is not None:
                    self._culprits.setdefault(suspect.path, self._last)
        self._last = line


_CAUSES = {
    events.Cause.SYNC: "it ends a step inside (the end of the function does that)",
    events.Cause.READ: "it reads a value on the host",
    events.Cause.FULL: "it records more operations than a tape holds",
}


def _at(what: str, line: Line) -> str:
    return f"{what} ({lines.text(line)})"


def _token(read: Callable[[], Any]) -> Any:
    value = read()
    return value if isinstance(value, (int, float, str, bytes)) else id(value)


def _random_states() -> tuple[Any, ...]:
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().numpy().tobytes()
