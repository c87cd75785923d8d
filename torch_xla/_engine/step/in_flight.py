"""Programs in flight on each target, and waiting for the host memory of earlier ones.

Programs begin under the lock that recording needs; they end, and are waited for, without it.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .. import metrics
from ..compile.program import Program
from ..ir.call_plan import Plan
from ..metrics import events, user_lines
from ..metrics.user_lines import Line
from ..runtime.device_assignment import Target
from . import device_waits

# The user's line of each operation of a program: looked up only where somebody wants to know.
SourceLines = Callable[[], tuple[Line | None, ...]]

device_lock_wait = metrics.metric("DeviceLockWait")


class Flight:
    """What a target has been given and may not have done yet."""

    __slots__ = ("reports", "running", "started")

    def __init__(self) -> None:
        # The last programs started, each with small outputs that are there when all of it has ended: waiting waits for
        # these, and they hold little memory.
        self.started: deque[tuple[int, list[Any], Program, Sequence[float | int], SourceLines]] = deque(maxlen=32)
        # The bytes that each program which may still run allocated, and outputs that tell when it has ended.
        self.running: deque[tuple[int, list[Any]]] = deque()
        # What assertions and checks of values found, with what they do, where they stand and the assertion's message.
        self.reports: deque[tuple[Any, Plan, Line | None, int]] = deque()


by_target: dict[Target, Flight] = {}

# On the host a program waits for those before it until what they and it allocate is no more than this. Several at once
# need memory for each, on cores that they only share; but the device stands still while a program that waited is woken
# and started, and of small programs that is the larger part.
AT_ONCE = 64 << 20
# Programs whose values take less are not counted.
COUNTED = 1 << 20
# After waiting for so many seconds, this part of them is a moment.
_LONG, _MOMENT = 0.02, 1 / 400


def has_memory(program: Program) -> bool:
    """Whether `wait_for_memory` would not wait."""
    running = _counted_beside(program)
    return running is None or _in_the_way(running, program.allocates) is None


def wait_for_memory(program: Program) -> None:
    """Waits until there is room for what the program takes on the host, as far as programs that run are in the way.

    Where the program is started, which is under the lock, `free_memory` does it: then others cannot record meanwhile.
    """
    running = _counted_beside(program)
    if running is None or _in_the_way(running, program.allocates) is None:
        return
    start = time.perf_counter_ns()
    # One without an end is about to begin in another thread.
    while (first := _in_the_way(running, program.allocates)) is not None and first[1]:
        _wait_for_end(running, first)
    device_lock_wait.add(time.perf_counter_ns() - start)


def _counted_beside(program: Program) -> "deque[tuple[int, list[Any]]] | None":
    """The programs beside which this one is counted, if it is."""
    if program.bytes < COUNTED or not program.target.is_host:
        return None
    flight = by_target.get(program.target)
    return None if flight is None else flight.running


def free_memory(running: "deque[tuple[int, list[Any]]]", needed: int) -> None:
    """Waits until what the counted programs allocated is no more than `AT_ONCE`, together with `needed` bytes."""
    while (first := _in_the_way(running, needed)) is not None:
        _wait_for_end(running, first)


def _in_the_way(running: "deque[tuple[int, list[Any]]]", needed: int) -> tuple[int, list[Any]] | None:
    """The oldest of the counted programs, if `needed` bytes are too many beside them."""
    counted = list(running)  # other threads begin and end some
    return counted[0] if counted and needed + sum([size for size, _ in counted]) > AT_ONCE else None


def _wait_for_end(running: "deque[tuple[int, list[Any]]]", first: tuple[int, list[Any]]) -> None:
    ends = still_there(first[1])
    if not all([end.is_ready() for end in ends]):
        start = time.perf_counter()
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # whoever waits for that program is told
            device_waits.until_ready(ends)
        waited = time.perf_counter() - start
        if waited > _LONG:
            # XLA tells that a program has ended and frees its memory then, in a thread that this one was just woken in
            # the place of. A moment later its memory is there for the next program, which is about to ask for as much.
            time.sleep(waited * _MOMENT)
        tell_wait(start, False)
    leave(running, first)


def still_there(ends: list[Any]) -> list[Any]:
    """Without those that were given to a later program, which ends later."""
    return [end for end in ends if not end.is_deleted()]


def tell_wait(start: float, asked: bool) -> None:
    """Tells listeners of a wait since `start`, which the user `asked` for or which room for a program did."""
    if events.closely or (asked and events.watched):
        events.emit(events.Wait(user_lines.user_lines(events.depth), start, time.perf_counter() - start, asked))


def leave_ended(flight: Flight) -> None:
    """Lets go of programs that have ended well: the smallest of their outputs may be large."""
    started = flight.started
    while started:
        try:
            first = started[0]
        except IndexError:
            return  # another thread was faster
        _, ends, program, _, _ = first
        left = still_there(ends)
        if not ends or program.graph.effects or not all([end.is_ready() for end in left]):
            return
        try:
            device_waits.until_ready(left)
        except jax.errors.JaxRuntimeError:
            return  # whoever waits is told
        leave(started, first)


def forget_ended(running: "deque[Any]") -> None:
    """Lets go of counted programs that have ended."""
    while running:
        try:
            first = running[0]
        except IndexError:
            return
        if not all([end.is_ready() for end in still_there(first[1])]):
            return
        leave(running, first)


def leave(started: "deque[Any]", waited_for: Any) -> None:
    """Lets go of the first, not before it was waited for, because waiting may be interrupted."""
    if started and started[0] is waited_for:  # another thread may have been faster
        started.popleft()
