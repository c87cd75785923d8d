"""Decide which values count as held so that all processes choose the same program.

What the program can reach is the same in all processes. What is held is that, and what garbage holds besides, which one
process may have collected and another may not. So a set of values is taken without a look at garbage only where each
part of it would be answered by the same set: it lies in the *usual* one. Otherwise garbage is collected first. What is
answered then, and which set is the usual one, follows from what could be reached now and in earlier equal steps alone.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..atomic import stores
from ..caching import least_recently_used
from ..ir.tape import Value

# So many bytes are computed, or not given away, in each step if some steps need them.
_SMALL = 1 << 20
# In so many runs garbage is collected before it is known which values are usually held.
_SETTLING = 2
# So many sets are known of one tape besides the usual one.
_MOST = 8


class _State(NamedTuple):
    """What earlier runs have left."""

    sets: tuple[int, ...] = ()  # the usual one first; each is a number with a byte for each value
    runs: int = 0  # no more are counted than `_SETTLING`


class Liveness:
    """What counts as held of equal tapes."""

    __slots__ = ("state", "used")

    def __init__(self) -> None:
        self.state = _State()
        self.used = least_recently_used.now()  # when it was asked last

    def whatever_is_garbage(self, live: bytes) -> bytes | None:
        """What counts as held where `live` is, a byte for each value; `None` if what of it is garbage could decide."""
        sets, runs = self.state
        if runs < _SETTLING or _number(live) & ~sets[0]:
            return None
        return sets[0].to_bytes(len(live), "little")

    def of_reachable(self, live: bytes, values: Sequence[Value]) -> bytes:
        """What counts as held where `live` is and nothing of it is garbage."""
        (sets, runs), held = self.state, _number(live)
        is_settled = runs == _SETTLING
        for each in sets:
            if not held & ~each and (is_settled or _bytes_of(each & ~held, values) <= _SMALL):
                return each.to_bytes(len(live), "little")
        joins = bool(sets) and (is_settled or _bytes_of(held ^ sets[0], values) <= _SMALL)
        return (held | sets[0] if joins else held).to_bytes(len(live), "little")

    def learned(self, live: bytes, values: Sequence[Value]) -> Iterator[None]:
        """Notes, when it is run through, that a program ran for which `live` counted as held."""
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
    """Whether all that is `live` is `counted` as held."""
    return not _number(live) & ~_number(counted)


def _number(live: bytes) -> int:
    return int.from_bytes(live, "little")


def _bytes_of(held: int, values: Sequence[Value]) -> int:
    """What these values take on the device, which need not exist."""
    each = enumerate(held.to_bytes(len(values), "little"))
    return sum(values[slot].spec.numel * values[slot].spec.dtype.itemsize for slot, is_held in each if is_held)
