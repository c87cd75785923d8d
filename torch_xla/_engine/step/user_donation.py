"""Donation by the user: values whose memory a program may take although a tensor still holds them."""

from collections.abc import Sequence

from .. import metrics
from ..ir.tape import Value
from ..runtime.buffers import refuse_given_away

_counter = metrics.counter("XlaSetBufferDonation")


class Donor(Value):
    """A value whose memory the next program that reads it may take."""

    __slots__ = ()


# Whether one was ever marked: until then nobody asks.
marked = False
# What `alias_with_buffer_donor_config` said last.
asked_for = False


def mark(value: Value, may_take: bool) -> bool:
    """Marks the memory of a value, or takes the mark back. False for one that is not computed: it has none yet."""
    global marked
    if value.buffer is None or value.shared or value.__class__ not in (Value, Donor):
        return False
    value.__class__ = Donor if may_take else Value
    marked = marked or may_take
    _counter.value += 1
    return True


def without_donors(values: Sequence[Value], live: bytes) -> bytes:
    """`live`, in which nobody counts as holding a value that is marked."""
    return bytes([0 if value.__class__ is Donor else alive for value, alive in zip(values, live, strict=True)])


def slots_of(values: Sequence[Value]) -> tuple[int, ...]:
    """Which of the values are marked."""
    return tuple(slot for slot, value in enumerate(values) if value.__class__ is Donor)


def refuse_taken(values: Sequence[Value]) -> None:
    """Raises if a program took the memory of one of them before."""
    for value in values:
        if value.__class__ is Donor and value.buffer is not None and value.buffer.is_deleted():
            refuse_given_away()
