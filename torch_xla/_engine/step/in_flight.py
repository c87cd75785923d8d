"""Programs in flight on each target: wait for their end, for what they report, and for the host memory they take.

Programs begin under the lock that recording needs; they end, and are waited for, without it.
"""

import contextlib
import time
from collections import deque
from collections.abc import Container, Sequence
from typing import Any

import jax

from .. import metrics
from ..compile.program import Program
from ..ir.call_plan import Plan
from ..ir.side_effects import EffectKind, message_of
from ..lowering.machinery import device_value_checks
from ..metrics import events, user_lines
from ..metrics.user_lines import Line
from ..runtime import buffers as client
from ..runtime.device_assignment import Target
from .run_failures import user_error
from .step import SourceLines
from .waits_among_processes import until_ready

device_lock_wait = metrics.metric("DeviceLockWait")


class Flight:
    """The programs that a target was given and may not have finished."""

    __slots__ = ("reports", "running", "started")

    def __init__(self) -> None:
        # The last programs started, each with small outputs that are there when all of it has ended: waiting waits for
        # these, and they hold little memory.
        self.started: deque[tuple[int, list[Any], Program, Sequence[float | int], SourceLines]] = deque(maxlen=32)
        # Of each program that may still run, the bytes it allocated, and outputs that show when it has ended.
        self.running: deque[tuple[int, list[Any]]] = deque()
        # Results of assertions and checks of values, each with its plan, its line and the number of its message.
        self.reports: deque[tuple[Any, Plan, Line | None, int]] = deque()


by_target: dict[Target, Flight] = {}
# Those whose programs have ever reported what an assertion found: most processes have none.
reporting: set[Flight] = set()
# That of the program that was started last.
latest: deque[Flight] = deque(maxlen=1)

# Maximum queued reports of assertions; a program that never waits looks at them then.
MOST_REPORTS = 4096

# On the host a program waits for earlier ones until they and it allocate no more than this together. Several at once
# need memory for each, on cores that they only share. But the device is idle while a program that waited is woken and
# started, which takes longer than a small program runs.
AT_ONCE = 64 << 20
# Programs whose values take less are not counted.
COUNTED = 1 << 20
# After a wait of at least _LONG seconds, sleep for this part of it.
_LONG, _MOMENT = 0.02, 1 / 400


def has_memory(program: Program) -> bool:
    """Return whether `wait_for_memory` would not wait."""
    running = _counted_beside(program)
    return running is None or _in_the_way(running, program.allocates) is None


def wait_for_memory(program: Program) -> None:
    """Wait until there is room for what the program takes on the host, as far as programs that run are in the way.

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


def _counted_beside(program: Program) -> "deque[tuple[int, list[object]]] | None":
    """Return the programs beside which this one is counted, if it is."""
    if program.bytes < COUNTED or not program.target.is_host:
        return None
    flight = by_target.get(program.target)
    return None if flight is None else flight.running


def free_memory(running: "deque[tuple[int, list[object]]]", needed: int) -> None:
    """Wait until what the counted programs allocated is no more than `AT_ONCE`, together with `needed` bytes."""
    while (first := _in_the_way(running, needed)) is not None:
        _wait_for_end(running, first)


def _in_the_way(running: "deque[tuple[int, list[object]]]", needed: int) -> tuple[int, list[object]] | None:
    """Return the oldest of the counted programs, if `needed` bytes are too many beside them."""
    counted = list(running)  # other threads begin and end some
    return counted[0] if counted and needed + sum([size for size, _ in counted]) > AT_ONCE else None


def _wait_for_end(running: "deque[tuple[int, list[object]]]", first: tuple[int, list[Any]]) -> None:
    ends = still_there(first[1])
    if not all([end.is_ready() for end in ends]):
        start = time.perf_counter()
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # a wait for that program raises it
            until_ready(ends)
        waited = time.perf_counter() - start
        if waited > _LONG:
            # XLA first reports the end of a program and then frees its memory, in a thread that this one has just
            # preempted. A moment later that memory is free for the next program, which is about to ask for as much.
            time.sleep(waited * _MOMENT)
        tell_wait(start, False)
    leave(running, first)


def still_there(ends: list[Any]) -> list[Any]:
    """Return the arrays that were not donated to a later program, which ends later."""
    return [end for end in ends if not end.is_deleted()]


def tell_wait(start: float, asked: bool) -> None:
    """Report listeners of a wait since `start`, which the user `asked` for or which room for a program did."""
    if events.closely or (asked and events.watched):
        events.emit(events.Wait(user_lines.user_lines(events.depth), start, time.perf_counter() - start, asked))


def leave_ended(flight: Flight) -> None:
    """Let go of programs that have ended well: the smallest of their outputs may be large."""
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
            until_ready(left)
        except jax.errors.JaxRuntimeError:
            return  # a wait raises it
        leave(started, first)


def forget_ended(running: "deque[Any]") -> None:
    """Let go of counted programs that have ended."""
    while running:
        try:
            first = running[0]
        except IndexError:
            return
        if not all([end.is_ready() for end in still_there(first[1])]):
            return
        leave(running, first)


def leave(started: "deque[Any]", waited_for: object) -> None:
    """Let go of the first, not before it was waited for, because waiting may be interrupted."""
    if started and started[0] is waited_for:  # another thread may have been faster
        started.popleft()


def wait(devices: Container[jax.Device] | None = None) -> None:
    """Wait until every program started so far has ended, on any device or on one of these at least.

    Raises what one of them raised.
    """
    start = time.perf_counter()
    for target, flight in list(by_target.items()):
        if devices is None or any(device in devices for device in target.devices):
            wait_for(flight)
            raise_failed(flight)
    tell_wait(start, True)


def wait_for(flight: Flight) -> None:
    """Wait until every program of a target that was started so far has ended."""
    while True:
        try:
            first = flight.started[0]
        except IndexError:
            forget_ended(flight.running)
            return
        step, ends, program, numbers, source_lines = first
        waited = still_there(ends)
        try:
            until_ready(waited)
            if program.graph.effects:
                client.wait_for_callbacks()
        except jax.errors.JaxRuntimeError as error:
            if len(still_there(waited)) < len(waited):
                continue  # another thread gave the memory of one to its program meanwhile
            leave(flight.started, first)
            raise user_error(program, numbers, error, f"step {step}", source_lines()) from error
        leave(flight.started, first)


def raise_failed_assertions(device: jax.Device) -> None:
    """Raise what the first failed assertion of a program started on `device` says; waits for all of them."""
    for target, flight in list(by_target.items()) if reporting else ():
        if flight.reports and device in target.devices:
            raise_failed(flight)


def raise_failed(flight: Flight) -> None:
    """Raise what the first failed assertion of a target says; wait for all of them."""
    while flight.reports:
        try:
            first = flight.reports[0]
        except IndexError:
            return  # another thread looks at the last
        array, plan, line, message = first
        until_ready([array])
        found = client.get(array)
        if plan.effect is not None and plan.effect.kind is EffectKind.CHECK:
            error = device_value_checks.complaint(plan, found, None if line is None else user_lines.text(line))
        else:
            error = None if found else _broken(message_of(message), line)
        if error is not None:
            flight.reports.clear()  # on the CPU nothing that comes later would have been looked at
            raise error
        leave(flight.reports, first)


def _broken(message: str, line: Line | None) -> RuntimeError:
    return RuntimeError(f"{message}\n  asserted at {user_lines.text(line)}" if line is not None else message)


def ends_of(device: jax.Device) -> list[object]:
    """Return small outputs of the programs that were started on `device` and may still run."""
    flights = [flight for target, flight in list(by_target.items()) if device in target.devices]
    return [end for flight in flights for _, ends, *_ in list(flight.started) for end in ends]


def have_ended(ends: list[object]) -> bool:
    """Return whether the programs with these outputs have ended."""
    return all([end.is_ready() for end in still_there(ends)])


def last_ends() -> list[object] | None:
    """Return small outputs of the program started last: they are there when it has ended. `None` before the first."""
    return latest[0].started[-1][1] if latest and latest[0].started else None
