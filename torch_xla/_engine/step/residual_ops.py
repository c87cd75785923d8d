"""Replace an evaluated tape by a new one with the operations that were not run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat

from ..atomic import run_through, stores
from ..compile.source_metadata import scopes_at
from ..ir.graph import Operation, decode
from ..ir.tape import ALONE, Tape, Value
from ..ir.value_spec import Spec, sharded
from ..lowering.machinery.jax_sharding import carried, from_jax
from ..tensor.device import Device
from .step import Schedule, Seen


def carry_over(schedule: Schedule, tape: Tape, fresh: Tape, seen: Seen, device: Device) -> tuple[Iterator[object], int]:
    """Record the operations that an evaluation leaves undone on a `fresh` tape, with the open named scopes.

    Returns the stores that give the values their new slots, to be run through, and the number of values recorded again
    that are not held.
    """
    settled: Iterator[object] = iter(())
    unheld = 0
    if schedule.kept or seen.behind:
        again = Again(fresh, tape, seen.values, device, schedule.cut.outputs)
        specs = _specs_afterwards(schedule, tape, seen.values, device)
        for left in (schedule.kept, seen.behind):
            again.record(left, specs, [tape.recorder(operation.position) for operation in left])
            fresh.rest = ALONE if tape.rest == ALONE else fresh.rest or len(fresh.code) * bool(schedule.kept)
        settled, unheld = again.settled(), again.unheld
    if tape.scopes and (tape.scopes[-1][1] or fresh.scopes):
        fresh.scopes.append((len(fresh.code), tape.scopes[-1][1]))  # those still open
    return settled, unheld


def record_behind(tape: Tape, other: Tape, device: Device) -> None:
    """Record the operations of an `other` tape on `tape`, behind what it has."""
    inputs, operations, _ = decode(other.code)
    again = Again(tape, other, other.values, device)
    again.record(operations, inputs.__getitem__, [other.recorder(operation.position) for operation in operations])
    run_through(again.settled())


class Again:
    """Operations of a tape that are recorded again on the one that takes its place.

    The values learn of it when `settled` is run through.
    """

    def __init__(
        self, tape: Tape, old: Tape, values: Sequence[Value], device: Device, computed: Sequence[int] = ()
    ) -> None:
        self.tape = tape
        self.unheld = 0  # values that take the place of one that is `computed`
        self._old, self._values, self._device, self._computed = old, values, device, frozenset(computed)
        self._lines = old.all_lines(old.code)
        self._slots: dict[int, int] = {}
        self._moved: list[Value] = []
        self._positions: dict[int, int] = {}  # of the operations in the code of both tapes

    def record(self, operations: Sequence[Operation], specs: Callable[[int], Spec], recorders: Iterable[int]) -> None:
        """Record operations for the threads `recorders`; `specs` gives the spec of an input by its old slot."""
        tape = self.tape
        scopes = scopes_at([operation.position for operation in operations], self._old.scopes)
        for index, (operation, thread) in enumerate(zip(operations, recorders, strict=False)):
            if tape.turns[-1][1] != thread:
                tape.turns.append((len(tape.code), thread))
            for slot in operation.operands:
                if slot not in self._slots:
                    value = self._values[slot]
                    self._slots[slot] = tape.take_over(value, specs(slot))
                    self._moved.append(value)
            if operation.position in self._lines and not tape.expects(operation.plan):
                tape.lines[len(tape.code)] = self._lines[operation.position]
            if scopes:
                tape.scopes.append((len(tape.code), scopes[index]))
            self._append(operation)

    def _append(self, operation: Operation) -> None:
        tape, old, plan = self.tape, self._old, operation.plan
        first = operation.first_number
        numbers = old.numbers[first : first + len(plan.numbers)]
        draws = old.draws[operation.draw : operation.draw + plan.draws] if plan.draws else ()
        self._positions[operation.position] = len(tape.code)
        made = tape.append(plan, [self._slots[slot] for slot in operation.operands], self._device, numbers, draws)
        for nth, value in enumerate(made):
            slot = operation.first_output + nth
            self._slots[slot] = value.slot
            before = self._values[slot]
            if slot in self._computed or before.buffer is not None:
                self.unheld += 1
            else:
                tape.values[value.slot] = value = before
            self._moved.append(value)

    def settled(self) -> chain[None]:
        """Give the values their slots on the new tape, when it is run through."""
        places = self._slots
        for (base, view), shown in self._old.reads.items():
            if base in places and shown in places:
                self.tape.reads[places[base], view] = places[shown]
        for program, asked in self._old.truths.items():
            if left := frozenset(self._positions[each] for each in asked if each in self._positions):
                self.tape.truths[program] = left
        slots = stores(self._moved, "slot", range(len(self._moved)))
        return chain(slots, stores(self._moved, "tape", repeat(self.tape)))


def _specs_afterwards(schedule: Schedule, old: Tape, values: list[Value], device: Device) -> Callable[[int], Spec]:
    """Return a function that gives the spec of a slot after a run: on several devices, with its sharding."""
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
