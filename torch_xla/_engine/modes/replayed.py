"""A step function that is recorded a few times and replayed from then on, as long as nothing differs."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ..tensor import device as devices
from ..tensor import step
from .recording import Facts, record, same
from .region import Region, is_inside
from .replay import Replay
from .signature import Call, taken_apart

# A replay is made from so many calls in a row that do the same.
ENOUGH = 3
# What has not become a replay after so many watched calls does not become one.
PATIENCE = 10
# A replay that ends before so many runs was not worth its recordings; after so many of these there are no more.
WORTH = 8
MOST_WORTHLESS = 4
# So many kinds of arguments a function is replayed with.
MOST_KINDS = 16
# So many different things a function is warned of.
MOST_WARNINGS = 20


class _Kind:
    """What is known of the calls with one kind of arguments."""

    def __init__(self) -> None:
        self.replay: Replay | None = None
        self.recorded: list[Facts] = []  # the last calls, as long as they are the same
        self.watched = 0
        self.worthless = 0
        self.given_up = ""  # why it is not tried any more
        self.suspects: Sequence[Any] = ()


class Replayed:
    """A function that is recorded a few times and replayed from then on."""

    def __init__(self, function: Callable[..., Any], region: Region) -> None:
        region.name = region.name or getattr(function, "__qualname__", type(function).__name__)
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._region = region
        self._kinds: dict[Any, _Kind] = {}
        self._told: set[str] = set()
        self._why = "it was not called yet"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_inside():
            self._why = "it was called in another compiled function, and is a part of that"
            return self._function(*args, **kwargs)  # a part of the region around it
        step.end_step()
        call = taken_apart(args, kwargs)
        kind = self._kinds.get(call.key)
        if kind is None:
            kind = self._new_kind(call)
        replay, reason = kind.replay, ""
        if replay is not None:
            reason = replay.hindrance()
            if not reason:
                done, result = replay.run(call)
                if done:
                    step.end_step()
                    self._why = ""
                    return result
                reason = "memory that it overwrites is also held by something else, or was given another shape"
            self._drop(kind, replay, reason)
        if kind.given_up:
            self._why = kind.given_up
            with self._region:
                return self._function(*args, **kwargs)
        return self._watched(kind, call, args, kwargs, reason)

    @property
    def is_replayed(self) -> bool:
        """Whether a call of some kind would be replayed now."""
        return any(kind.replay is not None for kind in self._kinds.values())

    @property
    def why_recorded(self) -> str:
        """Why the last call was recorded; "" if it was replayed."""
        return self._why

    def _drop(self, kind: _Kind, replay: Replay, reason: str) -> None:
        kind.replay = None
        kind.watched = 0
        kind.worthless = kind.worthless + 1 if replay.runs < WORTH else 0
        if kind.worthless >= MOST_WORTHLESS:
            kind.given_up = f"what it sees changes too often, the last time {reason}"
            self._tell(f"is recorded, not replayed: what it sees changes too often, this time {reason}")
        else:
            self._tell(f"is recorded this time: {reason}")

    def _new_kind(self, call: Call) -> _Kind:
        kind = _Kind()
        if call.hindrance:
            kind.given_up = call.hindrance
            self._tell(f"is recorded, not replayed: {call.hindrance}")
        elif len(self._kinds) >= MOST_KINDS:
            others = f"with other arguments than the first {MOST_KINDS} kinds"
            numbers = "Python numbers that change from call to call must be tensors"
            self._tell(f"is recorded, not replayed, {others}: {numbers}")
            kind.given_up = f"it was called {others}: {numbers}"
            return kind
        self._kinds[call.key] = kind
        return kind

    def _watched(self, kind: _Kind, call: Call, args: Any, kwargs: Any, ended_by: str) -> Any:
        device = devices.device_at(devices.current_index())
        kind.watched += 1
        with self._region:
            result, facts = record(self._function, args, kwargs, call, device, kind.suspects, self._region.end)
        kind.suspects = facts.differences
        reason = facts.reasons[0] if facts.reasons else ""
        if not reason and kind.recorded:
            reason = same(kind.recorded[-1], facts)
        if facts.reasons:
            kind.recorded.clear()
        elif reason:
            kind.recorded = [facts]
        else:
            kind.recorded = [*kind.recorded[-ENOUGH:], facts]
            if len(kind.recorded) >= ENOUGH:
                kind.replay = Replay(facts, device)
                kind.recorded.clear()
        self._why = self._progress(kind, reason or ended_by)
        if kind.replay is None:
            facts.release()
        if kind.replay is None and kind.watched >= PATIENCE:
            kind.given_up = reason or "it takes too many calls until three are the same"
            kind.recorded.clear()
            self._tell(f"is recorded, not replayed: {kind.given_up}")
        return result

    @staticmethod
    def _progress(kind: _Kind, reason: str) -> str:
        if kind.replay is not None:
            return f"it was the last of {ENOUGH} calls that did the same: the next one is replayed"
        rest = f"a replay needs {ENOUGH} calls in a row that do the same, and has seen {len(kind.recorded)}"
        return f"{reason}; {rest}" if reason else rest

    def _tell(self, what: str) -> None:
        # Once each: a step function is called a million times.
        if what not in self._told and len(self._told) < MOST_WARNINGS:
            self._told.add(what)
            warnings.warn(f"{self._region.name} {what}", stacklevel=4)
