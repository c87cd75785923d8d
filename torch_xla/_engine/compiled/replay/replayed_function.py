"""A function that is watched a few times and then replayed, as long as its guards hold."""

import functools
import sys
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from ...compat.names import torch as private
from ...compat.patches import garbage_callback
from ...compile.program import Program
from ...processes import identity
from ...step import end_of_step
from ...tensor import device as devices
from ..region import Region, is_inside
from .accessed_names import Reads
from .argument_spec import Call, taken_apart
from .call_record import Facts, same
from .global_state import hindrance
from .replay import OTHER_GRADIENTS, Replay
from .scalar_tracing import Changing
from .watched_call import record

# A replay is made after this many equal calls in a row.
ENOUGH = 3
# Without `replay=True` a function is watched from this call on: watching a call costs as much as recording four.
EARNED_AFTER = 16
# After this many watched calls without a replay, a function is not watched any more.
PATIENCE = 10
# A replay that ends before this many runs was not worth its recordings; after as many such replays, stop.
WORTH = 8
MOST_WORTHLESS = 4
# Most sets of leaves with a gradient that are replayed for one kind of arguments.
MOST_PATTERNS = 4
# Most kinds of arguments for which a function is replayed.
MOST_KINDS = 16
# Most different warnings for one function.
MOST_WARNINGS = 20

# The watched call that runs now, of the whole process. A watch sets trace functions, which are each thread's own, but
# CPython 3.12 can crash where one thread sets them while another is traced. One `setdefault` takes the turn, so that no
# interrupt can come between taking it and knowing of it. It is `[function]`, a new list for each call.
_watched: dict[str, list["Replayed"]] = {}


class _Kind:
    """The state of calls with one kind of arguments, and with gradients at the same leaves."""

    def __init__(self, shows_numbers: bool) -> None:
        self.replay: Replay | None = None
        self.recorded: list[Facts] = []  # the last calls, as long as they are the same
        self.packed: Program | None = None  # that of the last replay, if it packed small values
        self.learned = 0  # 1 if the previous call showed everything that this one reads
        self.watched = 0
        self.worthless = 0
        self.given_up = ""  # why it is not tried any more
        self.suspects: Sequence[Any] = ()
        self.reads: Reads | None = None  # what the last call has looked at
        self.changing = Changing(is_shown=shows_numbers)  # of the host

    def give_up(self, why: str) -> None:
        """Record its calls from now on, and release all that it held to learn from them."""
        self.given_up = why
        self.recorded.clear()
        self.suspects, self.reads, self.changing = (), None, Changing(is_shown=False)


class _Arguments:
    """The calls with one kind of arguments."""

    def __init__(self, call: Call, shows_numbers: bool) -> None:
        self.objects = call.objects  # alive, so that no others come to their addresses
        # Alive: `torch.utils.swap_tensors` refuses tensors with weak references. Only as long as they are needed.
        self.leaves: list[torch.Tensor] = []
        self._shows_numbers = shows_numbers
        self.current = _Kind(shows_numbers)
        self._by_gradients: dict[tuple[bool, ...], _Kind] = {}

    @property
    def kinds(self) -> list[_Kind]:
        return [self.current, *self._by_gradients.values()]

    def look_at_gradients(self) -> _Kind:
        """Return the state of calls that find gradients at the present leaves: gradients are zeroed or accumulated."""
        there = tuple(leaf.grad is not None for leaf in self.leaves)
        kind = self._by_gradients.get(there)
        if kind is None and len(self._by_gradients) < MOST_PATTERNS:
            kind = self._by_gradients[there] = _Kind(self._shows_numbers) if self.leaves else self.current
        if kind is not None:
            self.current = kind
        return self.current

    def learn(self, facts: Facts) -> None:
        """Take note of whose gradients matter: of the leaves that this call has seen, or a replay sees."""
        seen = [facts.leaves, *(kind.replay.leaves for kind in self.kinds if kind.replay is not None)]
        needed = {id(leaf): leaf for leaves in seen for leaf in leaves}
        if needed.keys() != set(map(id, self.leaves)):
            self.leaves = [*needed.values()]
            had = {id(leaf): had for leaf, had in zip(facts.leaves, facts.had_gradient, strict=True)}
            there = tuple(had.get(id(leaf), leaf.grad is not None) for leaf in self.leaves)
            self._by_gradients = {there: self.current}

    def forget(self) -> None:
        """Release the leaves, where no replay sees them."""
        if not any(kind.replay is not None for kind in self.kinds):
            self.leaves, self._by_gradients = [], {}


class Replayed:
    """A function that is recorded a few times and replayed from then on."""

    _shows_numbers = True  # the program's own code may see a number of a trace where it has a float

    def __init__(self, function: Callable[..., object], region: Region) -> None:
        region.name = region.name or getattr(function, "__qualname__", type(function).__name__)
        self.__qualname__ = region.name  # where `function` has none, such as a module
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self.region = region
        self._kinds: dict[Hashable, _Arguments] = {}
        self._warned: set[str] = set()
        self._why = "it was not called yet"

    def __get__(self, instance: object, owner: object = None) -> object:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str:
        # As a function is: found by its name when it is read again, and itself in every copy.
        return self.__qualname__

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if is_inside():
            self._why = "it was called in another compiled function, and is a part of that"
            return self._function(*args, **kwargs)  # a part of the region around it
        if private.transforms_are_active():
            self._why = hindrance()
            return self._function(*args, **kwargs)
        end_of_step.end_step(reset_scope=False)
        call = taken_apart(args, kwargs)
        arguments = self._kinds.get(call.key)
        if arguments is None:
            self._why = self._hesitation(call)
            if self._why:
                return self._recorded(args, kwargs)
            arguments = self._new_kind(call)
        kind = arguments.current
        replay = kind.replay  # a collection of garbage may take it away (`_release_old_objects`)
        reason = replay.hindrance() if replay is not None else ""
        if replay is None or reason == OTHER_GRADIENTS:
            kind = arguments.look_at_gradients()
            replay = kind.replay
            reason = replay.hindrance() if replay is not None else ""
        if replay is not None:
            if not reason:
                numbers = replay.numbers(call)
                if not replay.admits(numbers):
                    self._why = (
                        "the host knows numbers of an argument that no recorded call has had: they are looked at"
                    )
                    result = self._recorded(args, kwargs)
                    replay.passed(numbers)
                    return result
                reason, result = replay.run(call)
                if not reason:
                    end_of_step.end_step(reset_scope=False)
                    self._why = ""
                    return result
            self._drop(kind, replay, reason)
        if kind.given_up:
            self._why = kind.given_up
            return self._recorded(args, kwargs)
        return self._watch_if_alone(arguments, kind, call, args, kwargs, reason)

    def _recorded(self, args: Any, kwargs: Any) -> object:
        with self.region.call(sys._getframe()):
            return self._function(*args, **kwargs)

    def _hesitation(self, call: Call) -> str:
        """Return why nothing is to be noted yet of a new kind of arguments, or nothing."""
        return ""

    @property
    def is_replayed(self) -> bool:
        """Return whether a call of some kind would be replayed now."""
        return any(kind.replay is not None for arguments in self._kinds.values() for kind in arguments.kinds)

    @property
    def why_recorded(self) -> str:
        """Why the last call was recorded; "" if it was replayed."""
        return self._why

    def _drop(self, kind: _Kind, replay: Replay, reason: str) -> None:
        kind.replay, kind.packed = None, replay.packed
        kind.watched = kind.learned = 0
        kind.worthless = kind.worthless + 1 if replay.runs < WORTH else 0
        if kind.worthless >= MOST_WORTHLESS:
            kind.give_up(f"what it sees changes too often, the last time {reason}")
            self._warn(f"is recorded, not replayed: what it sees changes too often, this time {reason}")
        else:
            self._warn(f"is recorded this time: {reason}")

    def _new_kind(self, call: Call) -> _Arguments:
        arguments = _Arguments(call, self._shows_numbers)
        kind = arguments.current
        if call.hindrance:
            kind.give_up(call.hindrance)
            self._warn(f"is recorded, not replayed: {call.hindrance}")
        elif len(self._kinds) >= MOST_KINDS:
            others = f"with other arguments than the first {MOST_KINDS} kinds"
            numbers = "Python numbers that change from call to call must be tensors"
            self._warn(f"is recorded, not replayed, {others}: {numbers}")
            kind.give_up(f"it was called {others}: {numbers}")
            return arguments
        self._kinds[call.key] = arguments
        return arguments

    def _watch_if_alone(
        self, arguments: _Arguments, kind: _Kind, call: Call, args: Any, kwargs: Any, ended_by: str
    ) -> object:
        reason = hindrance()
        if reason:
            self._why = reason
            return self._recorded(args, kwargs)
        watched = [self]
        try:
            if _watched.setdefault("call", watched) is not watched:
                self._why = "another thread is in the middle of a call that is learnt from"
                return self._recorded(args, kwargs)
            return self._watch(arguments, kind, call, args, kwargs, ended_by)
        finally:
            if _watched.get("call") is watched:
                del _watched["call"]

    def _watch(self, arguments: _Arguments, kind: _Kind, call: Call, args: Any, kwargs: Any, ended_by: str) -> Any:
        device = devices.device_at(devices.current_index())
        kind.watched += 1
        try:
            with self.region.call(sys._getframe()):
                result, facts = record(
                    self._function, args, kwargs, call, device, kind.reads, kind.suspects, kind.changing,
                    self.region.end,
                )  # fmt: skip
        except BaseException as error:
            if kind.watched >= PATIENCE:
                kind.give_up(f"it raises errors, the last time {type(error).__name__}")
            raise
        arguments.learn(facts)
        _note_garbage(self)
        kind.reads = facts.reads
        kind.suspects = facts.differences
        reason = facts.reasons[0] if facts.reasons else ""
        if not reason and kind.recorded:
            reason = same(kind.recorded[-1], facts)
        if facts.reasons or facts.only_learned:
            kind.recorded.clear()
            kind.learned = int(facts.only_learned)
        elif reason:
            kind.recorded, kind.learned = [facts], 0
        else:
            kind.recorded = [*kind.recorded[-ENOUGH:], facts]
            if len(kind.recorded) + kind.learned >= ENOUGH:
                reason = self._begin(kind, Replay(facts, call, device, kind.packed))
                kind.recorded.clear()
        self._why = self._progress(kind, reason or ended_by)
        if kind.replay is None:
            facts.release()
        if kind.replay is None and kind.watched >= PATIENCE:
            kind.give_up(reason or "it takes too many calls until three are the same")
            self._warn(f"is recorded, not replayed: {kind.given_up}")
            arguments.forget()
        return result

    def release_old_objects(self) -> None:
        """Release objects that no replay reads; a recorded call finds them again."""
        if self not in _watched.get("call", ()):
            for arguments in list(self._kinds.values()):
                arguments.forget()

    def _begin(self, kind: _Kind, replay: Replay) -> str:
        """Replay the calls of a kind from the next one on, or return why not."""
        kind.replay = replay
        return ""

    @staticmethod
    def _progress(kind: _Kind, reason: str) -> str:
        if kind.replay is not None:
            return f"it was the last of {ENOUGH} calls that did the same: the next one is replayed"
        rest = (
            f"a replay needs {ENOUGH} calls in a row that do the same, and has seen {kind.learned + len(kind.recorded)}"
        )
        return f"{reason}; {rest}" if reason else rest

    def _warn(self, what: str) -> None:
        # Once each: a step function is called a million times.
        if what not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(what)
            warnings.warn(f"{self.region.name} {what}", stacklevel=4)


class ReplayedByItself(Replayed):
    """A function compiled without a choice of `replay`: replays begin after a while, without warnings.

    They begin only if the program cannot notice: no program is compiled for it, no other process waits for this one, no
    debugger wants to stop inside, no object lives longer, and floats stay floats.
    """

    _shows_numbers = False

    def __init__(self, function: Callable[..., object], region: Region) -> None:
        super().__init__(function, region)
        self._calls = 0
        self._running = 0
        self._lately: deque[object] = deque(maxlen=4)  # the last new kinds of arguments

    def __call__(self, *args: object, **kwargs: object) -> Any:
        self._calls += 1
        reason = f"it is recorded {EARNED_AFTER} times first" if self._calls <= EARNED_AFTER else _onlooker()
        if reason:
            self._why = reason
            return self._recorded(args, kwargs)
        self._running += 1
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._running -= 1

    def _hesitation(self, call: Call) -> str:
        if call.objects:
            return "an argument is an object, which a replay would keep: `torch_xla.compile(replay=True)` does"
        if call.key in self._lately:
            return ""
        self._lately.append(call.key)
        return "it was not called with such arguments lately"

    def _begin(self, kind: _Kind, replay: Replay) -> str:
        if replay.is_of_another_program:
            kind.give_up("its replay would be another program: `torch_xla.compile(replay=True)` compiles that")
            return kind.given_up
        return super()._begin(kind, replay)

    def release_old_objects(self) -> None:
        """End replays whose objects the function cannot reach any more: the replays held them."""
        if not self._running:
            for kind in [kind for arguments in self._kinds.values() for kind in arguments.kinds]:
                if kind.replay is not None and not kind.replay.sees_the_same():
                    kind.replay = None
                    kind.watched = kind.learned = 0
            super().release_old_objects()

    def _warn(self, what: str) -> None:
        """Do not warn: `why_recorded` gives the reason on request."""


_learning: "weakref.WeakSet[Replayed]" = weakref.WeakSet()


def _note_garbage(function: Replayed) -> None:
    """Make `function` drop objects that it does not need at each full garbage collection."""
    garbage_callback.after_full_collections(_release_old_objects)
    _learning.add(function)


def _release_old_objects() -> None:
    """Drop objects of replays, so that a deleted model's memory is free after a garbage collection."""
    for function in list(_learning):
        function.release_old_objects()


def _onlooker() -> str:
    """Return why a function without `replay=True` must really be called; empty if it need not."""
    if sys.gettrace() is not None or sys.getprofile() is not None or _has_debugger():
        return "a debugger or profiler looks at what is called"
    return "there are other processes" if identity.process_count() > 1 else ""


def _has_debugger() -> bool:
    monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
