"""What becomes of a tape that is evaluated: another takes its place, with what the evaluation leaves undone."""

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

from ..compile.source_metadata import scopes_at
from ..graph.spec import Spec, sharded
from ..graph.tape import Tape, Value
from ..lowering.sharding import carried, from_jax
from ..uninterrupted import stores
from .device import Device
from .schedule import Schedule


class Changed(Exception):
    """Something was recorded on a tape, or it was evaluated, while its program was found and compiled."""


class _Refusing(dict[int, None]):
    def __missing__(self, length: int) -> None:
        raise Changed


def unchanged_by(tape: Tape, length: int) -> Iterator[None]:
    """Raises `Changed`, when it is run through, if the code of `tape` has not this length any more."""
    return map(_Refusing({length: None}).__getitem__, map(len, map(getattr, (tape,), ("code",))))


def succeeded(
    schedule: Schedule, tape: Tape, values: list[Value], device: Device, is_whole: bool
) -> tuple[Iterator[Any], int]:
    """What puts another tape in the place of one that is about to be evaluated, when it is run through.

    Besides: how many values were recorded anew that nobody holds. With `is_whole` all of the tape is evaluated.
    """
    following = schedule.followed_by
    fresh = device.new_tape(following.code if following else None, following.lines if following else None)
    if is_whole or not schedule.kept:
        ends, unheld = _end_of(tape, fresh, device), 0
    else:
        ends, unheld = _carry_over(schedule, tape, values, fresh, device)
    if tape.scopes and (tape.scopes[-1][1] or fresh.scopes):
        fresh.scopes.append((len(fresh.code), tape.scopes[-1][1]))  # those still open
    return ends, unheld


def _end_of(tape: Tape, following: Tape, device: Device) -> Iterator[Any]:
    """What puts another tape in the place of one that was evaluated."""
    # Values may outlive their tape; they must not keep all the others alive through it.
    names = "tape", "ended", "values", "code", "reads"
    return map(setattr, (device, tape, tape, tape, tape), names, (following, True, [], [], {}))


def _carry_over(
    schedule: Schedule, old: Tape, values: list[Value], tape: Tape, device: Device
) -> tuple[Iterator[Any], int]:
    """Records again, on the new `tape`, what the evaluation of one value leaves undone.

    The values learn of it when what this returns is run through. The number is of those that nobody holds.
    """
    unheld = 0
    tape.is_rest = bool(schedule.kept)
    slots: dict[int, int] = {}
    moved: list[Value] = []
    computed = set(schedule.cut.outputs)
    specs = _specs_afterwards(schedule, old, values, device)
    scopes = scopes_at([operation.position for operation in schedule.kept], old.scopes)
    for index, operation in enumerate(schedule.kept):
        plan = operation.plan
        for slot in operation.operands:
            if slot not in slots:
                value = values[slot]
                slots[slot] = tape.take_over(value, specs(slot))
                moved.append(value)
        if operation.position in schedule.lines and not tape.expects(plan):
            tape.lines[len(tape.code)] = schedule.lines[operation.position]
        if scopes:
            tape.scopes.append((len(tape.code), scopes[index]))
        first = operation.first_number
        numbers = old.numbers[first : first + len(plan.numbers)]
        draws = old.draws[operation.draw : operation.draw + plan.draws] if plan.draws else ()
        made = tape.append(plan, [slots[slot] for slot in operation.operands], device, numbers, draws)
        for nth, value in enumerate(made):
            slot = operation.first_output + nth
            slots[slot] = value.slot
            before = values[slot]
            if slot in computed or before.buffer is not None:
                unheld += 1
            else:
                tape.values[value.slot] = value = before
            moved.append(value)
    placed = chain(stores(moved, "slot", range(len(moved))), stores(moved, "tape", repeat(tape)))
    return chain(placed, _end_of(old, tape, device)), unheld


def _specs_afterwards(schedule: Schedule, old: Tape, values: list[Value], device: Device) -> Callable[[int], Spec]:
    """What the spec of a value of the tape is once a schedule was run: on several devices, with its sharding."""
    program, target = schedule.program, device.target if device.spread is not None else None
    results: dict[int, Spec] = {}
    if target is not None and program is not None and schedule.kept and program.target is target:
        placed = program.placed([old.numbers[i] for i in schedule.cut.numbers])
        for slot, sharding in zip(schedule.cut.outputs, placed, strict=True):
            spec = values[slot].spec
            results[slot] = sharded(spec, from_jax(sharding, carried(spec.size, sharding), target))

    def of(slot: int) -> Spec:
        value = values[slot]
        if target is None or slot in results:
            return results.get(slot, value.spec)
        return device.placed(value) if value.buffer is not None else value.spec

    return of
