"""Events: one small record of each thing the engine did, for listeners and guards.

A listener is called after an action, in the thread and on the stack that caused it. A guard is called before, with the
same record, in which unknown fields are zero; it refuses the action by raising an exception. Without listeners and
guards the engine tests `watched` once per evaluation or transfer, and never per operation. Frequent records are made
only while a listener watches `closely`; a history can always be kept of the others.

Times are those of `time.perf_counter`. Lists of lines begin with the innermost.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from .counters import counter
from .observers import observers
from .user_lines import Line


class Cause(Enum):
    """Why recorded operations are run."""

    SYNC = "sync"  # the program ended its step
    READ = "read"  # the program looked at a value that was not computed yet
    FULL = "full"  # the tape had grown too long


class Direction(Enum):
    """Where a transfer goes."""

    TO_DEVICE = "to device"
    FROM_DEVICE = "from device"


class Sizes(NamedTuple):
    """Bytes on the device that a compiled program needs, as XLA reports them."""

    inputs: int
    outputs: int
    aliased: int  # bytes of outputs that are written over inputs
    intermediate: int
    code: int


class Compilation(NamedTuple):
    """XLA compiled a program. Keep `program.graph`, never `program`: it holds the executables."""

    program: Any  # of compile/: its `graph`, `donated` inputs and `device`
    numbers: tuple[float | int, ...]  # the Python numbers of this run
    lines: tuple[Line | None, ...]  # the user's line of each operation of the graph, as far as known
    names: tuple[str, ...]  # of the inputs, as the user calls them; "" where unknown; empty if no search was asked for
    cause: Cause
    frames: tuple[Line, ...]  # frames of the call that made it run
    start: float
    seconds: float
    sizes: Sizes | None  # None: not compiled yet, or the platform does not report sizes
    # Parts that were compiled once and run several times: number of runs and of operations.
    shared: tuple[tuple[int, int], ...] = ()


class Execution(NamedTuple):
    """A program was started; the device may still run it. Sent to close listeners."""

    program: Any  # as in `Compilation`
    numbers: tuple[float | int, ...]
    cause: Cause
    frames: tuple[Line, ...]
    start: float
    seconds: float  # of the host, compiling not included
    # The scopes that each operation of the graph was recorded in, outermost first; empty if there are none.
    scopes: Sequence[tuple[str, ...]] = ()


class Evaluation(NamedTuple):
    """Recorded operations were run: all of them (the end of a step) or what a value needs (a read).

    Sent to close listeners, and to all if neither a step nor a transfer reports it.
    """

    cause: Cause
    device: int
    frames: tuple[Line, ...]
    start: float
    seconds: float  # of the host: looking up or compiling, and starting; not waiting for the result
    operations: int  # 0: nothing had to run
    for_transfer: bool = False  # a transfer follows, which reports it too


class Wait(NamedTuple):
    """The host waited until the device was done."""

    frames: tuple[Line, ...]
    start: float
    seconds: float
    # Requested by the program, as in `sync(wait=True)`. Else a wait on the CPU for the last step (close listeners).
    asked: bool


class Transfer(NamedTuple):
    """A value came from a device, or (sent to close listeners) went to one."""

    direction: Direction
    device: int
    bytes: int
    frames: tuple[Line, ...]
    start: float
    seconds: float  # coming from a device: waiting included, evaluation not
    forced: bool  # coming from a device: it had not been computed, so an evaluation came before
    evaluating: float = 0.0  # the seconds of that evaluation, which ended when the transfer started


class Fallback(NamedTuple):
    """An operator without a rule ran on the CPU."""

    operator: str
    frames: tuple[Line, ...]
    start: float
    seconds: float  # bringing the operands, computing and returning the result


class StepEnd(NamedTuple):
    """A step ended. Sent to close listeners; the last ones are in `steps`.

    A sync with nothing recorded, as in eager mode and after a read of everything, ends a step for close listeners only.
    """

    number: int  # how many steps the process has ended, those with nothing recorded included
    device: int
    frames: tuple[Line, ...]  # none without a close listener
    start: float  # when the step before it ended
    seconds: float


Event = Compilation | Execution | Evaluation | Wait | Transfer | Fallback | StepEnd
Listener = Callable[[Any], None]

# Whether there are listeners or guards: the only test in the engine. Whether there are guards.
watched = False
guarded = False
# Whether a listener watches closely.
closely = False
# How many of the user's frames the records carry at most; those of a compilation carry all.
depth = 1
ALL_FRAMES = 64

# The fields of the last steps, while a listener keeps them. A step may be all that a program does, so other listeners
# are called only for a step that ends later than `due`, which they set.
steps: "deque[tuple[object, ...]] | None" = None
due = math.inf

_listeners: list[tuple[Listener, int, bool, tuple[type, ...]]] = []
# The listeners alone: those of each kind of event, and those of the kinds that no listener named.
_calls: dict[type, tuple[Listener, ...]] = {}
_of_others: tuple[Listener, ...] = ()
_guards: list[Listener] = []
_log = logging.getLogger("torch_xla.events")
_failed = counter("ListenerFailed")
_logged: set[tuple[Listener, type]] = set()

# Makes a record of a tuple of all its fields, in half the time that its constructor takes: for those of every step.
record = tuple.__new__


def listen(listener: Listener, frames: int = 1, closely: bool = True, kinds: tuple[type, ...] = ()) -> None:
    """Call `listener(event)` for every event of these `kinds` from now on, of all if none is given.

    Records carry `frames` of the user's frames if they can.
    """
    _listeners.append((listener, frames, closely, kinds))
    _settle()


def unlisten(listener: Listener) -> None:
    """End `listen`."""
    _listeners[:] = [entry for entry in _listeners if entry[0] != listener]
    _logged.difference_update([each for each in _logged if each[0] == listener])
    _settle()


def listen_if(is_wanted: bool, listener: Listener) -> None:
    """Make `listener` one that is called for every event, or none, whichever it was before."""
    is_called = any(entry[0] == listener for entry in _listeners)
    if is_wanted and not is_called:
        listen(listener)
    elif is_called and not is_wanted:
        unlisten(listener)


def guard(guard: Listener) -> None:
    """Call `guard(event)` before every action from now on; if it raises, the action is not done."""
    _guards.append(guard)
    _settle()


def unguard(guard: Listener) -> None:
    """End one `guard`."""
    _guards[:] = [each for each in _guards if each != guard]
    _settle()


def _settle() -> None:
    global watched, guarded, closely, depth, _calls, _of_others
    named = {kind for _, _, _, kinds in _listeners for kind in kinds}
    _calls = {
        kind: tuple(listener for listener, _, _, kinds in _listeners if not kinds or kind in kinds) for kind in named
    }
    _of_others = tuple(listener for listener, _, _, kinds in _listeners if not kinds)
    guarded = bool(_guards)
    watched = guarded or bool(_listeners)
    closely = any(close for _, _, close, _ in _listeners)
    depth = max((frames for _, frames, _, _ in _listeners), default=1)


def keep_steps(queue: "deque[tuple[Any, ...]] | None") -> None:
    """Keep the fields of the last steps in `queue`, and call listeners for the next step; with `None`, do neither."""
    global steps, due
    steps, due = queue, math.inf if queue is None else 0.0


def wait_until(time: float) -> None:
    """Call listeners of steps for those that end later than `time`."""
    global due
    due = time


def ask(event: Event) -> None:
    """Let the guards refuse an action before it is done."""
    for each in tuple(_guards):
        each(event)


def emit(event: Event) -> None:
    """Call the listeners. A failure of one is logged once and not raised, because it would leave a step half done."""
    for listener in _calls.get(event.__class__, _of_others):
        try:
            listener(event)
        except Exception:  # listeners are the user's too
            _failed.value += 1
            what = (listener, type(event))
            if what not in _logged:
                _logged.add(what)
                _log.exception("the listener %r failed on %s; more of its failures are only counted", *what)


def names_of(buffers: Sequence[object]) -> tuple[str, ...]:
    """Return the user's names of these buffers, if a listener wants them and a search is registered."""
    if not watched or observers.name_buffers is None:
        return ()
    try:
        return observers.name_buffers(buffers)
    except Exception:
        # The search looks at objects of the user's, and what these do then is no reason not to compile.
        _log.exception("the names of the inputs could not be found")
        return ()
