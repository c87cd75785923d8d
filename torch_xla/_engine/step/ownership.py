"""Count who holds a value, and so decide whose memory a program may take.

One buffer belongs to one value. Its memory may be given away when nobody but who gives it holds the value, told by its
reference count, and nobody outside holds the buffer (`Value.shared`); or when who holds it has said so
(`user_donation`). A sync, a call in eager mode, a replay, a pack and DLPack ask here, and count nothing themselves.
Which result can use the memory is the graph's affair (`ir/input_output_alias.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from operator import le
from sys import getrefcount
from typing import Any, NamedTuple

from ..ir.graph import Cut
from ..ir.input_output_alias import takers
from ..ir.tape import Value
from ..ir.value_spec import spec_of
from . import user_donation


def _counts(values: Sequence[Value]) -> Iterator[int]:
    return map(getrefcount, values)


# What a value counts that one list holds and nobody else, while it is looked at in that list.
_LISTED = next(_counts([Value(spec_of((), (), None), None, None, 0)]))


def held(values: Sequence[Value]) -> bytes:
    """One byte for each value of a list: does anybody besides it hold the value?

    A storage, another thread's frame: all count. Reference counts answer in 40 ns a value what weak references to every
    storage would answer in 400.
    """
    return bytes(map(_LISTED.__lt__, _counts(values)))


def held_at_end(values: Sequence[Value]) -> tuple[bytes, tuple[int, ...]]:
    """`held` for the values of a tape that is to be evaluated, and the slots whose memory may be taken all the same."""
    live = held(values)
    if not user_donation.marked or len(live) != len(values):
        return live, ()
    return user_donation.without_donors(values, live), user_donation.slots_of(values)


def are_owned(values: Sequence[Value], besides: int = 0) -> bool:
    """Whether one storage holds each of the values of a list, and nobody else but the `besides` that ask."""
    return all(map(le, _counts(values), repeat(_LISTED + 1 + besides)))


def may_be_taken(values: Sequence[Value], besides: int = 0) -> bool:
    """Whether the memory of all may be given away by the storages that hold them."""
    return are_owned(values, besides) and not any([value.shared for value in values])


def donated(
    part: Cut, live: bytes, shared: Sequence[int], successor: dict[int, int], is_spread: bool
) -> tuple[int, ...]:
    """The inputs whose last holder is the tape, as far as an output can take their memory; the `successor`s do so."""
    # Whether the memory of one fits another is known of successors alone where values are divided.
    candidates = [
        index
        for index, slot in enumerate(part.inputs)
        if not live[slot] and slot not in shared and (not is_spread or index in successor)
    ]
    return takers(part.graph, candidates, successor)


class StillHeld(Exception):
    """Somebody holds what a program was about to take."""


class _Refusing(dict[bool, None]):
    def __missing__(self, key: bool) -> None:
        raise StillHeld


_agree: Callable[[bool], None] = _Refusing({True: None}).__getitem__


class Taken(NamedTuple):
    """What a program takes: values, and how often each may be held when it does."""

    values: list[Value]
    most: list[int]

    def are_free(self, besides: int = 0) -> bool:
        """Whether nobody holds more of them than is known, and the `besides` that will let go of them."""
        return all(map(le, _counts(self.values), map(besides.__add__, self.most)))

    def refusal(self) -> Iterator[None]:
        """Raises `StillHeld`, when it is run through, if they are not free."""
        return map(_agree, map(le, _counts(self.values), self.most))


NOTHING = Taken([], [])


def taken(given: list[Value], *known: Sequence[Any]) -> Taken | None:
    """The `given` values, if nobody outside holds their buffers.

    `known` are the lists that hold them besides this one: of values, or of (value, view).
    """
    if any(value.shared for value in given):
        return None
    holders = [each[0] if each.__class__ is tuple else each for each in chain(*known)]
    return Taken(given, [_LISTED + holders.count(value) for value in given])
