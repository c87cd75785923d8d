"""Trace one call of a function: its side effects, the lines they are on, and what it accesses.

Only the few calls from which a replay is made are watched; a profile and a trace function make them some times slower.
"""

import logging
import random
import sys
import threading
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch

from ...atomic import lock
from ...compat.patches import autograd_observers
from ...dispatch import recording_kernel
from ...metrics import events, user_lines
from ...metrics.events import Direction
from ...metrics.user_lines import Line
from ...tensor.device import LOCK
from . import accessed_names, pure_allowlist
from .guards import Change, is_of_the_host
from .pure_allowlist import Domain

# Python 3.12 ends its process by SIGSEGV where the opcodes of two threads are traced at a time.
_TAKES_TURNS = sys.version_info[:2] == (3, 12)
_TURN = lock()
# A function that is looked at may wait for another thread, whose own call waits for its turn: for so many seconds.
_PATIENCE = 2.0

_GENERATORS = ("Python's `random`", "NumPy", "PyTorch on the CPU", "a generator of its own")

_LOG = logging.Logger._log.__code__


class CallWatch:
    """A `with` block around one call. Afterwards `reasons` says what a replay would leave out, each with its line.

    Nothing is to be collected meanwhile: whose finalisers and callbacks ran in the middle of the call would be chance.
    """

    def __init__(self, suspects: Sequence[Change] = ()) -> None:
        self.reasons: list[str] = []
        self.unknown: list[str] = []  # calls with unknown effects
        self.uploads: list[Line] = []
        self.executed = accessed_names.Executed()
        self.through_dynamo = False  # code ran that PyTorch made of the program's
        self.unseen = ""  # what kept us from looking, such as a profiler or debugger of the user's
        self._importing: FrameType | None = None  # what looks for a module that is not there yet
        self._suspects = list(suspects)
        self._culprits: dict[str, Line] = {}
        self._is_on = False

    def __enter__(self) -> "CallWatch":
        self._thread = threading.get_ident()
        self._states = _random_states()
        self._held = LOCK._recursion_count()  # type: ignore[attr-defined]
        self._traces = sys.gettrace() is None
        if sys.getprofile() is not None or (self._suspects and not self._traces):
            self.unseen = "a profiler or debugger was active"
        self._last: Line | None = None
        self._is_on = True
        events.guard(self._heard)
        autograd_observers.listen(self._asked)
        if _TAKES_TURNS and self._traces and not self.unseen and not _TURN.acquire(timeout=_PATIENCE):
            self.unseen = "another thread's call was looked at, which Python 3.12 does for one thread at a time"
        if not self.unseen:
            self._tokens = [_token(each.read) for each in self._suspects]
            if self._traces:
                # Python 3.12 traces instructions only from the first `settrace` after a frame asked for them.
                sys._getframe().f_trace_opcodes = True
                _install(sys.settrace, self._trace)
            _install(sys.setprofile, self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        if not self.unseen:
            self._look(None)
        self.end()
        for name, before, after in zip(_GENERATORS, self._states, _random_states(), strict=True):
            if before != after:
                self.reasons.append(f"it draws random numbers of {name}")

    def _stop(self) -> None:
        if not self.unseen:
            _install(sys.setprofile, None)
            if self._traces:
                _install(sys.settrace, None)

    def end(self) -> None:
        """Take back what `with` has put in place, if an interrupt on its way in or out has kept it from that."""
        if not self._is_on:
            return
        self._stop()
        while self._traces and _TURN._recursion_count():  # type: ignore[attr-defined]
            _TURN.release()
        # From Python 3.14 on the profile function is called when the lock's `__enter__` returns, and an interrupt
        # there leaves the lock taken.
        while LOCK._recursion_count() > self._held:  # type: ignore[attr-defined]
            LOCK.release()
        autograd_observers.unlisten(self._asked)
        events.unguard(self._heard)
        self._is_on = False

    def reads(self) -> accessed_names.Reads:
        """Return what the program's code has read."""
        found = self.executed.reads()
        found.compiled = self.through_dynamo
        return found

    def line_of(self, path: str) -> Line | None:
        """Return the line that changed the suspect with this path."""
        return self._culprits.get(path)

    def _heard(self, event: object) -> None:
        if threading.get_ident() != self._thread:
            return
        if isinstance(event, events.Evaluation):
            self.reasons.append(_at(_CAUSES[event.cause], event.frames[0]))
        elif isinstance(event, events.Transfer):
            if event.direction is Direction.TO_DEVICE:
                self.uploads.append(event.frames[0])
            else:
                self.reasons.append(_at("it reads a value on the host", event.frames[0]))

    def _asked(self, name: str, frame: FrameType) -> None:
        if threading.get_ident() == self._thread and _asked_by(frame) is Domain.PROGRAM:
            self._note_unknown(f"it looks at `{name}` of a tensor", frame)

    def _profile(self, frame: FrameType, kind: str, called: object) -> None:
        if self._importing is not None:
            if kind == "return" and frame is self._importing:
                self._importing = None
        elif kind == "c_call":
            if _asked_by(frame) is Domain.PROGRAM and called is not sys.setprofile:
                self._c_call(frame, called)
        elif kind == "call":
            code = frame.f_code
            if pure_allowlist.is_import(code):
                self._importing = frame
            elif pure_allowlist.domain_of(code, frame.f_globals) is Domain.PROGRAM:
                if not self._traces:
                    self.executed.whole.add(code)
                self.executed.offsets[code]  # it was there, whatever it did  # noqa: B018
            elif frame.f_back is not None and _asked_by(frame.f_back) is Domain.PROGRAM:
                self._python_call(frame, code)

    def _c_call(self, frame: FrameType, called: Any) -> None:
        try:
            if called in pure_allowlist.BY_NAME:
                self.executed.everything |= not accessed_names.name_is_constant(frame)
            elif called in pure_allowlist.BY_ANY_NAME or called.__name__ in pure_allowlist.ANY_NAME:
                self.executed.everything = True
            is_known = pure_allowlist.call_is_allowed(called)
        except TypeError:  # bound to something that has no hash
            is_known = pure_allowlist.call_is_allowed(called)
        if not is_known and not pure_allowlist.call_by_library_is_allowed(called, frame):
            self._note_unknown(f"it {pure_allowlist.said(called)}", frame)

    def _python_call(self, frame: FrameType, code: CodeType) -> None:
        if code is _LOG:
            self._note_unknown("it logs", frame)
        elif pure_allowlist.is_dynamos(code):
            self.through_dynamo = True
        elif not pure_allowlist.code_is_allowed(code, frame.f_globals):
            module = frame.f_globals.get("__name__", "?")
            self._note_unknown(f"it calls {module}.{code.co_qualname}, which may do more than return a value", frame)

    def _note_unknown(self, what: str, frame: FrameType) -> None:
        if len(self.unknown) < 10:
            users = user_lines.user_frame(frame)
            self.unknown.append(_at(what, user_lines.line_of(users or frame)))

    def _trace(self, frame: FrameType, kind: str, argument: object) -> Callable[..., object] | None:
        if self._importing is not None or pure_allowlist.domain_of(frame.f_code, frame.f_globals) is not Domain.PROGRAM:
            return None
        frame.f_trace_opcodes = True
        if kind == "opcode":
            self.executed.offsets[frame.f_code].add(frame.f_lasti)
        elif kind == "line" and self._suspects:
            self._look(user_lines.line_of(frame))
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


def _install(how: Callable[[Any], None], function: Callable[..., object] | None) -> None:
    """Call `sys.settrace` or `sys.setprofile`, again if another thread is in the middle of such a call.

    CPython 3.11 refuses the second of two such calls, although each thread has functions of its own. The first one
    lets other threads run where an audit hook is written in Python, as `filelock`'s is, which PyTorch imports.
    """
    while True:
        try:
            return how(function)
        except RuntimeError as error:
            if "function is being installed" not in str(error):
                raise


def _asked_by(frame: FrameType) -> Domain:
    """Return whose code asked for what this frame does: the standard library works for its caller."""
    each: FrameType | None = frame
    while each is not None:
        domain = pure_allowlist.domain_of(each.f_code, each.f_globals)
        if domain is not Domain.PYTHON:
            return domain
        each = each.f_back
    return Domain.ENGINE


def _at(what: str, line: Line) -> str:
    return f"{what} ({user_lines.text(line)})"


def _token(read: Callable[[], object]) -> object:
    value = read()
    is_by_value = isinstance(value, (int, float, str, bytes)) or is_of_the_host(value)
    return value if is_by_value else id(value)


def _random_states() -> tuple[bytes | str | int | tuple[object, ...], ...]:
    return (
        random.getstate(),
        str(np.random.get_state()),
        torch.get_rng_state().numpy().tobytes(),
        recording_kernel.given_draws,
    )
