"""Partition a tape by thread: run what this thread recorded, and of others only what that needs.

Threads that work on one device share its tape, so what they record lies between each other's operations. Run together
it would be a new program at every step. So before an evaluation what is the thread's own comes to the front of the
tape, in the order in which it was recorded: its program is that of the thread alone. What others have recorded stays
for them. Threads that have ended, or have never evaluated anything, leave theirs to whoever comes.

A tape that several processes evaluate together is evaluated whole: nothing local may decide what becomes of it.
"""

import threading
from collections.abc import Collection
from itertools import chain, repeat
from threading import get_ident
from weakref import WeakSet

from ..atomic import run_through
from ..ir.graph import Operation, decode, effective, needed, slots_of
from ..ir.tape import Front, Tape
from ..lowering.views.storage_access import READ
from ..tensor import live_counters
from ..tensor.device import Device
from .ownership import held
from .residual_ops import Again, Changed, end_of, unchanged_by

# Threads that have evaluated something. Not their numbers: those of threads that have ended are given to others.
_evaluators: WeakSet[threading.Thread] = WeakSet()


class _Thread(threading.local):
    is_known = False


_thread = _Thread()


def others(tape: Tape) -> Collection[int]:
    """The threads whose operations on the tape wait for an evaluation of theirs when this thread has one."""
    me = get_ident()
    if not _thread.is_known:
        # One that Python did not start is no evaluator: `current_thread()` would make it an object that stays.
        _evaluators.update(each for each in threading.enumerate() if each.ident == me)
        _thread.is_known = True
    if len(tape.turns) == 1 and tape.turns[0][1] == me:
        return ()
    found = {thread for _, thread in tape.turns if thread != me}
    return {each.ident for each in threading.enumerate() if each.ident in found and each in _evaluators}


def front_of(tape: Tape, waiting: Collection[int], roots: tuple[int, ...] | None) -> Front | None:
    """What this thread evaluates of a tape, if it lies in front of all that the `waiting` threads have recorded.

    `None` if `bring_forward` has yet to see to that.
    """
    front = tape.front
    if front is None or front.thread != get_ident() or any(slot >= front.values for slot in roots or ()):
        return None
    if len(tape.code) == front.entries:
        return front
    behind = {tape.recorder(front.entries), *(thread for position, thread in tape.turns if position > front.entries)}
    return front if behind.issubset(waiting) else None


def bring_forward(device: Device, tape: Tape, waiting: Collection[int], roots: tuple[int, ...] | None) -> None:
    """Puts another tape in the place of this one, at the front of which is what this thread evaluates.

    Nothing happens if this one changes meanwhile.
    """
    code, values = (*tape.code,), tape.values
    inputs, operations, producer = decode(code)
    live = held(values)
    if len(live) != len(producer):
        return
    recorders = [tape.recorder(operation.position) for operation in operations]
    # What a view shows serves the operation behind it, whoever's that is, unless somebody holds it.
    mine = {
        index
        for index, (operation, recorder) in enumerate(zip(operations, recorders, strict=True))
        if recorder not in waiting and (operation.plan.op is not READ or live[operation.first_output])
    }
    first = _with_effects_before(operations, producer, mine, roots or ())
    done = set(first)
    # With what nobody holds any more: a thread's program would be another if it read through a view later.
    theirs = [index for index, recorder in enumerate(recorders) if recorder in waiting and index not in done]
    later = [index for index in effective(operations) if index not in done]
    behind = needed(operations, producer, slots_of(operations, theirs), set(slots_of(operations, first)), later)

    again = Again(device.new_tape(tape.expected_code, tape.expected_lines), tape, values, device)
    again.tape.started, again.tape.rest = tape.started, tape.rest
    thread = get_ident()
    again.record([operations[index] for index in first], inputs.__getitem__, repeat(thread))
    again.tape.front = Front(thread, len(again.tape.code), len(again.tape.values))
    owners = _owners([recorders[index] for index in behind], waiting)
    again.record([operations[index] for index in behind], inputs.__getitem__, owners)
    left_out = sum(made_by >= 0 and made_by not in done for made_by in producer) - len(slots_of(operations, behind))
    try:
        run_through(chain(unchanged_by(tape, len(code)), again.settled(), end_of(tape, again.tape, device)))
    except Changed:
        return
    live_counters.values.value += left_out


def _owners(recorders: list[int], waiting: Collection[int]) -> list[int]:
    """Whose the operations behind are: what one of the `waiting` reads through a view may have no turn of its own."""
    owners = [*recorders]
    for index in range(len(owners) - 2, -1, -1):
        if owners[index] not in waiting:
            owners[index] = owners[index + 1]
    return owners


def _with_effects_before(
    operations: list[Operation], producer: list[int], mine: set[int], roots: Collection[int]
) -> list[int]:
    """The operations that are `mine`, what they and the `roots` need, and if one has an effect all effects before."""
    effects = effective(operations)
    wanted = [*slots_of(operations, mine), *roots]
    chosen = needed(operations, producer, wanted, effects=[index for index in effects if index in mine])
    last = max((index for index in chosen if operations[index].plan.effect is not None), default=-1)
    return needed(operations, producer, wanted, effects=[index for index in effects if index <= last])
