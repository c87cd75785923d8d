"""Pass 2, partition: choose the operations of a tape that run now; the others stay.

**By thread.** Threads that work on one device share its tape, so their operations alternate. Run together they would be
a new program at every step. So before an evaluation a thread's own operations come to the front of the tape, in the
order in which they were recorded: its program is that of the thread alone. Operations of other threads stay for them.
Operations of threads that have ended, or have never evaluated anything, run with the next evaluation. A tape that
several processes evaluate together is evaluated whole: nothing local may decide about it.

**By value.** A read runs the operations that its value needs. Other values computed on the way are kept if they are
held; the remaining operations go to a fresh tape. A read that would add to what an earlier read has left runs all, and
so does each later read until a step ends that has something to run: a loop that never ends its step has one program for
all its rounds.
"""

import threading
from collections.abc import Collection, Sequence
from itertools import chain, repeat
from threading import get_ident
from weakref import WeakSet

import torch

from ..atomic import run_through
from ..ir.graph import Operation, decode, effective, needed, needed_in_order, slots_of
from ..ir.tape import ALL, ALONE, Front, Tape
from ..lowering.machinery.capacity_ops import APPEND
from ..lowering.views.storage_access import READ
from ..processes import identity
from ..tensor import live_counters
from ..tensor.device import Device
from .liveness import held
from .residual_ops import Again
from .step import Changed, Draft, end_of, unchanged

# Threads that have evaluated something. Not their numbers: those of threads that have ended are given to others.
_evaluators: WeakSet[threading.Thread] = WeakSet()


class _Thread(threading.local):
    is_known = False


this_thread = _Thread()


def others(tape: Tape) -> Collection[int]:
    """Return the threads whose operations on the tape wait for an evaluation of theirs when this thread has one."""
    me = get_ident()
    if not this_thread.is_known:
        # One that Python did not start is no evaluator: `current_thread()` would make it an object that stays.
        _evaluators.update(each for each in threading.enumerate() if each.ident == me)
        this_thread.is_known = True
    if len(tape.turns) == 1 and tape.turns[0][1] == me:
        return ()
    found = {thread for _, thread in tape.turns if thread != me}
    return {each.ident for each in threading.enumerate() if each.ident in found and each in _evaluators}


def front_of(tape: Tape, waiting: Collection[int], roots: tuple[int, ...] | None) -> Front | None:
    """Return the part that this thread evaluates, if it comes before all operations of the `waiting` threads.

    `None` if `bring_forward` has to reorder the tape first.
    """
    front = tape.front
    if front is None or front.thread != get_ident() or any(slot >= front.values for slot in roots or ()):
        return None
    if len(tape.code) == front.entries:
        return front
    behind = {tape.recorder(front.entries), *(thread for position, thread in tape.turns if position > front.entries)}
    return front if behind.issubset(waiting) else None


def bring_forward(device: Device, tape: Tape, waiting: Collection[int], roots: tuple[int, ...] | None) -> None:
    """Replace this tape by another one with the part that this thread evaluates at its front.

    Nothing happens if this tape changes meanwhile.
    """
    code, values = (*tape.code,), tape.values
    inputs, operations, producer = decode(code)
    live = held(values)
    if len(live) != len(producer):
        return
    recorders = [tape.recorder(operation.position) for operation in operations]
    # A read through a view belongs to the operation that follows it, of whichever thread, unless its result is held.
    mine = {
        index
        for index, (operation, recorder) in enumerate(zip(operations, recorders, strict=True))
        if recorder not in waiting and (operation.plan.op is not READ or live[operation.first_output])
    }
    first = _with_effects_before(operations, producer, mine, roots or ())
    done = set(first)
    # Include values that are not held: a later read through a view would give the thread another program.
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
        run_through(chain(unchanged(tape, len(code)), again.settled(), end_of(tape, again.tape, device)))
    except Changed:
        return
    live_counters.values.value += left_out


def _owners(recorders: list[int], waiting: Collection[int]) -> list[int]:
    """Return the threads of the remaining operations: a read through a view belongs to the operation behind it."""
    owners = [*recorders]
    for index in range(len(owners) - 2, -1, -1):
        if owners[index] not in waiting:
            owners[index] = owners[index + 1]
    return owners


def _with_effects_before(
    operations: list[Operation], producer: list[int], mine: set[int], roots: Collection[int]
) -> list[int]:
    """Return the operations that are `mine`, all that they and the `roots` need, and effects before the last effect."""
    effects = effective(operations)
    wanted = [*slots_of(operations, mine), *roots]
    chosen = needed(operations, producer, wanted, effects=[index for index in effects if index in mine])
    last = max((index for index in chosen if operations[index].plan.effect is not None), default=-1)
    return needed(operations, producer, wanted, effects=[index for index in effects if index <= last])


# Dtypes of counters and positions, and their maximum size in bytes.
_COUNTERS = (torch.int64, torch.int32)
_MOST_COUNTED = 1 << 20


def parted(
    operations: Sequence[Operation],
    producer: Sequence[int],
    pending: Sequence[int],
    chosen: Sequence[int],
    effects: Sequence[int],
    keeps_counters: bool,
) -> tuple[list[int], list[Operation]]:
    """Return the results of the `chosen` operations, and the operations that remain.

    If `keeps_counters`, the remaining operations may use integer counters that the chosen ones compute. Otherwise a
    loop that reads in each round and never ends its step would recompute its counter from zero. They use none in a step
    that was not cut before: its remaining operations may be the program of the whole step, which is compiled already.
    """
    done = set(chosen)
    # Keep held values that are computed on the way: nothing is computed twice.
    outputs = [slot for slot in pending if producer[slot] in done]
    left = [slot for slot in pending if producer[slot] not in done]
    later = [index for index in effects if index not in done]
    kept = needed(operations, producer, left, set(outputs), later)
    # An effect does not run twice either: remaining operations use the results of effects that ran.
    made = set(slots_of(operations, (index for index in effects if index in done)))
    if keeps_counters:
        made.update(slot for slot in slots_of(operations, chosen) if _counts(operations[producer[slot]], slot))
    if made:
        kept = needed(operations, producer, left, made.union(outputs), later)
        read = {slot for index in kept for slot in operations[index].operands}
        outputs = sorted({*outputs, *(read & made)})
    return outputs, [operations[index] for index in kept]


# The number of operations that run with any read, although it does not need them. A large read takes a third more.
FEW = 8


def are_few(kept: Sequence[Operation], more: int, read: int) -> bool:
    """Return whether what a read would leave, `more` than the `read` operations that it needs, runs with it.

    To leave it would take another program later, which may compute again what the read needed, and a program of both
    for the loop that reads again. What is few depends on nothing that ran before: a function that reads is cut alike at
    its first and its second call. Effects wait for the end of the step.
    """
    return more <= max(FEW, read // 3) and all(operation.plan.effect is None for operation in kept)


def grows(kept: Sequence[Operation], rest: int) -> bool:
    """Return whether a read would add to what an earlier read has left: some of the `rest` remains, and there is more.

    Then all is run: a loop that reads, and never ends its step, would leave more with each read.
    """
    if rest == ALL:
        return bool(kept)
    return {operation.position < rest for operation in kept} == {True, False}


def _counts(operation: Operation, slot: int) -> bool:
    """Return whether a result of an operation may be a counter, or a few positions."""
    spec = operation.plan.outputs[slot - operation.first_output]
    return spec.dtype in _COUNTERS and spec.numel * spec.dtype.itemsize <= _MOST_COUNTED


def with_reported(operations: Sequence[Operation], chosen: Sequence[int], outputs: Sequence[int]) -> list[int]:
    """Return the outputs, and what else the host looks at."""
    return sorted({*outputs, *slots_of(operations, reporting(operations, chosen))})


def reporting(operations: Sequence[Operation], chosen: Sequence[int]) -> list[int]:
    """Return those of the `chosen` operations whose results are looked at on the host."""
    return [index for index in chosen if (effect := operations[index].plan.effect) and effect.is_reported]


def with_end(operations: Sequence[Operation], chosen: Sequence[int], outputs: list[int]) -> list[int]:
    """Return the outputs; where there are none, a result of an exchange, by which its end can be waited for."""
    if outputs:
        return outputs
    exchanges = [operations[i] for i in chosen if (effect := operations[i].plan.effect) and effect.is_collective]
    sizes = {
        each.first_output + place: spec.numel for each in exchanges for place, spec in enumerate(each.plan.outputs)
    }
    return [min(sizes, key=sizes.__getitem__)] if sizes else outputs


def _is_free(draft: Draft, read: Sequence[int]) -> bool:
    """Return whether a read of the operations at `read` may run all others too.

    A process that reads by itself must not run an exchange with others. Where the value depends on an exchange, all
    processes read it, and all decide alike.
    """
    spread, operations = draft.device.spread, draft.operations
    if not draft.is_common or (spread is not None and len(spread.processes) > 1):
        return True
    return any((effect := operations[index].plan.effect) and effect.is_collective for index in read)


def choose(draft: Draft) -> Draft:
    """Choose the operations that run now: all that is held needs, or what the roots of a read need."""
    operations, producer, effects, pending = draft.operations, draft.producer, draft.effects, draft.pending
    roots, rest = draft.roots, draft.tape.rest
    draft.chosen, draft.outputs = needed(operations, producer, pending, effects=effects), pending
    if roots is not None:
        # A read waits, and raises the failed assertions of earlier operations.
        asked = [*roots, *slots_of(operations, reporting(operations, effects))] if roots else []
        if roots:  # what grew grows now, lest another program has to move it into its spare capacity
            asked.extend(slot for slot in pending if operations[producer[slot]].plan.op == APPEND)
        read = needed_in_order(operations, producer, asked)
        found, left = parted(operations, producer, pending, read, effects, keeps_counters=bool(rest))
        # One process of several may read alone: it leaves the same operations to later programs as the others have.
        few = identity.process_count() == 1 and are_few(left, len(draft.chosen) - len(read), len(read))
        more = rest != ALONE and (few or (rest and grows(left, rest)))
        if roots and left and more and _is_free(draft, read):
            draft.roots, draft.runs_all = None, not few
        else:
            draft.chosen, draft.outputs, draft.kept = read, found, left
    if effects:
        reported = with_reported(operations, draft.chosen, draft.outputs)
        draft.outputs = with_end(operations, draft.chosen, reported)
    return draft
