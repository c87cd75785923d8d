"""Pass 4, donation: choose the inputs whose memory the program takes.

An input is taken when its last holder is the tape, or when the user has marked it: a program may take the memory of a
marked value although a tensor still holds it.
"""

from collections.abc import Sequence

from .. import metrics
from ..ir.graph import Cut, cut
from ..ir.input_output_alias import in_order, successors, takers
from ..ir.tape import Value
from ..lowering.machinery.registry import calls_python
from ..runtime.buffers import deleted_error
from .step import Draft

_counter = metrics.counter("XlaSetBufferDonation")


class Donor(Value):
    """A value whose memory the next program that reads it may take."""

    __slots__ = ()
    exists = False  # whether a value was ever marked: until then no step looks for marks


# The last setting of `alias_with_buffer_donor_config`.
asked_for = False


def mark(value: Value, may_take: bool) -> bool:
    """Mark the memory of a value, or take the mark back. Return False for a value that is not computed yet."""
    if value.buffer is None or value.shared or value.__class__ not in (Value, Donor):
        return False
    value.__class__ = Donor if may_take else Value
    Donor.exists = Donor.exists or may_take
    _counter.value += 1
    return True


def without_donors(values: Sequence[Value], live: bytes) -> bytes:
    """Return `live` with the marked values as not held."""
    return bytes([0 if value.__class__ is Donor else alive for value, alive in zip(values, live, strict=True)])


def slots_of(values: Sequence[Value]) -> tuple[int, ...]:
    """Return which of the values are marked."""
    return tuple(slot for slot, value in enumerate(values) if value.__class__ is Donor)


def refuse_taken(values: Sequence[Value]) -> None:
    """Raise if a program took the memory of one of them before."""
    for value in values:
        if value.__class__ is Donor and value.buffer is not None and value.buffer.is_deleted():
            raise deleted_error(value.buffer)


def donate(draft: Draft) -> Draft:
    """Choose the donated inputs, and put each output that takes one in its place. A read donates nothing.

    Neither does a program that calls Python on the host: where that raises, the weights would be lost with the step.
    """
    if draft.roots is not None or draft.part is None:
        return draft
    if any(calls_python(operation.plan) for operation in draft.part.graph.operations):
        return draft
    successor = successors(draft.part.graph)
    draft.donated = donated(draft.part, draft.live, draft.seen.shared, successor, draft.device.spread is not None)
    order = in_order(draft.part.graph, draft.donated, successor)
    draft.part = cut(draft.inputs, draft.operations, draft.chosen, [draft.outputs[index] for index in order])
    return draft


def donated(
    part: Cut, live: bytes, shared: Sequence[int], successor: dict[int, int], is_spread: bool
) -> tuple[int, ...]:
    """Return the inputs that only the tape holds, as far as an output can take their memory, as a `successor` does."""
    # Whether the memory of one fits another is known of successors alone where values are divided.
    candidates = [
        index
        for index, slot in enumerate(part.inputs)
        if not live[slot] and slot not in shared and (not is_spread or index in successor)
    ]
    return takers(part.graph, candidates, successor)
