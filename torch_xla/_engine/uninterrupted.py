"""Several steps between which no exception from outside comes.

Python raises an interrupt (Ctrl-C, an alarm, `PyThreadState_SetAsyncExc`) where a function begins, where a loop jumps
back and behind a call. So between two stores there is none, and none inside a call of a function written in C. Where
one must not come between several calls, they are put into iterators written in C (`map`, `chain`), and one call runs
these to their end: `run_through`. What has to happen together is stated so before any of it happens, and interrupts
are neither blocked nor lost: one that came meanwhile is raised behind the call, when all is done.

Reference counts and finalizers: an object whose last reference goes away inside may run Python of its own, as anywhere.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

# Takes all that an iterator gives, and keeps nothing of it.
run_through: Callable[[Iterable[Any]], None] = deque[Any](maxlen=0).extend


def stores(objects: Iterable[Any], name: str, values: Iterable[Any]) -> Iterator[None]:
    """Sets the attribute `name` of each of the `objects` to its value, as it is run through."""
    return map(setattr, objects, repeat(name), values)  # type: ignore[func-returns-value]
