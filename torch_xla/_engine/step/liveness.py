"""Pass 1, liveness: find the values that are held, by reference counts. A step computes the pending ones among them.

One buffer belongs to one value. Its memory may be donated if the value has no holder but the donor, by its
reference count, and no holder of the buffer outside the engine (`Value.shared`); or if the user has marked the value
(`donation`). A sync, a call in eager mode, a replay, a pack and DLPack ask this module and count no references
themselves. `ir/input_output_alias.py` decides which result can use the memory.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from operator import le
from sys import getrefcount
from typing import NamedTuple

from ..ir.graph import decode, effective
from ..ir.tape import Front, Tape, Value
from ..ir.value_spec import spec_of
from ..lowering.machinery.capacity_ops import CUT
from .donation import Donor, without_donors
from .donation import slots_of as slots_of_donors
from .step import Draft, Seen


def _counts(values: Sequence[Value]) -> Iterator[int]:
    return map(getrefcount, values)


# The reference count of a value that only one list holds, while that list is iterated.
_LISTED = next(_counts([Value(spec_of((), (), None), None, None, 0)]))


_IS_HELD: Callable[[int], bool] = _LISTED.__lt__


def held(values: Sequence[Value]) -> bytes:
    """Return one byte for each value of a list: does anything else hold the value?

    A storage, another thread's frame: all count. Reference counts answer in 40 ns a value what weak references to every
    storage would answer in 400.
    """
    return bytes(map(_IS_HELD, map(getrefcount, values)))


def held_at_end(values: Sequence[Value]) -> tuple[bytes, tuple[int, ...]]:
    """Return `held` for the values of a tape that is to be evaluated, and the slots whose memory may be taken all the
    same.
    """
    live = held(values)
    if not Donor.exists or len(live) != len(values):
        return live, ()
    return without_donors(values, live), slots_of_donors(values)


def are_owned(values: Sequence[Value], besides: int = 0) -> bool:
    """Return whether each value of a list has no holder but one storage, and `besides` references of the caller."""
    return all(map(le, _counts(values), repeat(_LISTED + 1 + besides)))


def may_be_taken(values: Sequence[Value], besides: int = 0) -> bool:
    """Return whether the memory of all may be given away by the storages that hold them."""
    return are_owned(values, besides) and not any([value.shared for value in values])


def look(tape: Tape, front: Front | None = None) -> Seen | None:
    """Look at a tape that is to be evaluated, or at its `front`. `None` if it has changed meanwhile."""
    values = tape.values
    # As `held` does, without a call: each sync looks.
    live, given = held_at_end(values) if Donor.exists else (bytes(map(_IS_HELD, map(getrefcount, values))), ())
    # Not by `tuple()`: before 3.12 it may collect garbage while it copies, and a finalizer may have the list moved.
    code = (*tape.code,)
    seen = Seen(code, values, live, (*tape.shared,), given, len(code))
    if len(code) != len(tape.code) or len(live) != len(values) or tape.ended:
        return None
    return seen if front is None else _front_of(seen, front)


def _front_of(seen: Seen, front: Front) -> Seen:
    """Reduce `seen` to the front; operations behind it count as holders of their operands."""
    behind = [each for each in decode(seen.code)[1] if each.position >= front.entries]
    live, taken = bytearray(seen.live[: front.values]), set[int]()
    for operation in behind:
        for slot in operation.operands:
            if slot < front.values:
                live[slot] = True
                taken.add(slot)
    shared = (*[slot for slot in seen.shared if slot < front.values],)
    given = (*[slot for slot in seen.given if slot < front.values and slot not in taken],)
    code = seen.code[: front.entries]
    return seen._replace(code=code, live=bytes(live), shared=shared, given=given, behind=behind)


def find_pending(draft: Draft) -> Draft:
    """Find the slots whose values are held and not computed, and the operations with effects.

    A value that is cut from its room is computed only for a read: another step cuts it again.
    """
    live, operations, asked = draft.live, draft.operations, draft.roots or ()
    draft.pending = [
        slot
        for slot, made_by in enumerate(draft.producer)
        if made_by >= 0 and live[slot] and (operations[made_by].plan.op != CUT or slot in asked)
    ]
    draft.effects = effective(draft.operations)
    return draft


class StillHeld(Exception):
    """Somebody holds what a program was about to take."""


class _Refusing(dict[bool, None]):
    def __missing__(self, key: bool) -> None:
        raise StillHeld


_agree: Callable[[bool], None] = _Refusing({True: None}).__getitem__


class Taken(NamedTuple):
    """Values that a program takes, and how many references each may have when it does."""

    values: list[Value]
    most: list[int]

    def are_free(self, besides: int = 0) -> bool:
        """Return whether they have no more references than are known, and `besides` ones that will go."""
        return all(map(le, _counts(self.values), map(besides.__add__, self.most)))

    def refusal(self) -> Iterator[None]:
        """Raise `StillHeld`, when it is run through, if they are not free."""
        return map(_agree, map(le, _counts(self.values), self.most))


NOTHING = Taken([], [])


def taken(given: list[Value], *known: Sequence[object]) -> Taken | None:
    """Return the `given` values, unless a buffer has a holder outside the engine.

    `known` are the other lists that hold them: of values, or of (value, view).
    """
    if any(value.shared for value in given):
        return None
    holders = [each[0] if each.__class__ is tuple else each for each in chain(*known)]
    return Taken(given, [_LISTED + holders.count(value) for value in given])
