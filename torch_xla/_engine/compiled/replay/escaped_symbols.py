"""Replace symbolic floats that outlive their trace by plain floats."""

import gc
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import CellType

from .symbolic_floats import HostNumber


def put_floats_back(made: Sequence[weakref.ref[HostNumber]]) -> bool:
    """Replace each number that is alive by its value in every collection, attribute, closure and error that holds it.

    Returns whether there was one.
    """
    if not _put_back_in_holders(made):
        return False
    if any(each() is not None for each in made):
        gc.unfreeze()  # the search has left out frozen holders, as the names of a module may be
        _put_back_in_holders(made)
    return True


def _put_back_in_holders(made: Sequence[weakref.ref[HostNumber]]) -> bool:
    numbers = [number for number in (each() for each in made) if number is not None]
    if not numbers:  # most calls keep none, and a search goes through all objects
        return False
    for holder in gc.get_referrers(*numbers):  # the list is one
        _put_back(holder, _plain)
    return True


def _plain(value: object) -> object:
    return value.value if type(value) is HostNumber else value


def _put_back(holder: object, plain: Callable[[object], object]) -> None:
    if isinstance(holder, dict):
        for key, value in list(holder.items()):
            if plain(value) is not value:
                holder[key] = plain(value)
    elif isinstance(holder, (list, deque)):
        for index, value in enumerate(holder):
            if plain(value) is not value:
                holder[index] = plain(value)
    elif isinstance(holder, set):
        for value in [each for each in holder if plain(each) is not each]:
            holder.remove(value)
            holder.add(plain(value))
    elif isinstance(holder, tuple):
        _exchange(holder, tuple(map(plain, holder)))
    elif isinstance(holder, CellType):
        holder.cell_contents = plain(holder.cell_contents)
    else:
        for name, value in list(_attributes(holder)):
            if plain(value) is not value:
                setattr(holder, name, plain(value))
        if isinstance(holder, BaseException):
            holder.args = tuple(map(plain, holder.args))


def _exchange(old: tuple[object, ...], new: tuple[object, ...]) -> None:
    """Give each holder of a tuple another one. A tuple that nothing but a frame holds stays."""
    made = type(old)._make(new) if hasattr(old, "_make") else new  # type: ignore[attr-defined]
    # By defaults, which a tuple holds: the cell of a closure is a holder too, and would change before the others have.
    for holder in gc.get_referrers(old):
        if not isinstance(holder, tuple):
            _put_back(holder, lambda value, old=old, made=made: made if value is old else value)  # type: ignore[misc]


def _attributes(holder: object) -> Iterator[tuple[str, object]]:
    yield from getattr(holder, "__dict__", {}).items()
    for each in type(holder).__mro__:
        names = each.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if hasattr(holder, name):
                yield name, getattr(holder, name)
