"""Decide which values count as held so that all processes choose the same program.

The values that a program can reach are equal in all processes. The held values also include values that only garbage
holds, which one process may have collected and another may not. So a set of held values is used without a
collection only if it is part of the *usual* set: then every part of it gives the same answer. Otherwise garbage is
collected first. That answer, and the choice of the usual set, follow from the reachable values of this step and of
earlier equal steps alone.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..atomic import stores
from ..caching import least_recently_used
from ..ir.tape import Value

# Values of up to this many bytes in all are computed, or kept, in each step if only some steps need them.
_SMALL = 1 << 20
# Number of runs that collect garbage before the usual set is known.
_SETTLING = 2
# Maximum number of sets of one tape, without the usual one.
_MOST = 8


class _State(NamedTuple):
    """The sets of values that were held in earlier runs."""

    sets: tuple[int, ...] = ()  # the usual one first; each is a number with a byte for each value
    runs: int = 0  # no more are counted than `_SETTLING`


class Liveness:
    """The sets of values that count as held at the end of equal tapes."""

    __slots__ = ("state", "used")

    def __init__(self) -> None:
        self.state = _State()
        self.used = least_recently_used.now()  # when it was asked last

    def whatever_is_garbage(self, live: bytes) -> bytes | None:
        """Return the values that count as held if `live` is, a byte for each; `None` if garbage could decide."""
        sets, runs = self.state
        if runs < _SETTLING or _number(live) & ~sets[0]:
            return None
        return sets[0].to_bytes(len(live), "little")

    def of_reachable(self, live: bytes, values: Sequence[Value]) -> bytes:
        """Return the values that count as held if `live` is, and no value is held by garbage alone."""
        (sets, runs), held = self.state, _number(live)
        is_settled = runs == _SETTLING
        for each in sets:
            if not held & ~each and (is_settled or _bytes_of(each & ~held, values) <= _SMALL):
                return each.to_bytes(len(live), "little")
        joins = bool(sets) and (is_settled or _bytes_of(held ^ sets[0], values) <= _SMALL)
        return (held | sets[0] if joins else held).to_bytes(len(live), "little")

    def learned(self, live: bytes, values: Sequence[Value]) -> Iterator[None]:
        """Note, when it is run through, that a program ran for which `live` counted as held."""
        (sets, runs), held = self.state, _number(live)
        if runs < _SETTLING:
            others = [each for each in sets if each & ~held or _bytes_of(held & ~each, values) > _SMALL]
            sets = (*sorted([held, *others], key=lambda each: _bytes_of(each, values)),)
        elif held not in sets and _bytes_of(held & ~sets[0], values) <= _SMALL:
            sets = (held, *sets[1:])
        elif held not in sets:
            sets = (sets[0], *sets[1:][1 - _MOST :], held)
        return stores((self,), "state", (_State(sets, min(runs + 1, _SETTLING)),))


def covers(counted: bytes, live: bytes) -> bool:
    """Return whether all that is `live` is `counted` as held."""
    return not _number(live) & ~_number(counted)


def _number(live: bytes) -> int:
    return int.from_bytes(live, "little")


def _bytes_of(held: int, values: Sequence[Value]) -> int:
    """Return the size of these values on the device, computed or not."""
    each = enumerate(held.to_bytes(len(values), "little"))
    return sum(values[slot].spec.numel * values[slot].spec.dtype.itemsize for slot, is_held in each if is_held)
