"""Interned values: equal specs, views, plans and rules are one object, which is dropped when nothing else uses it.

Equal specs, views and plans are one object, so that `is` compares them; a table holds each. When many new ones were
made, the table drops the objects that nothing else holds: no tensor, no tape, and no program in memory. Objects in use
stay, so a step that runs again finds its plans, and with them its program. Reference counts decide. Counting and
dropping happen inside one call of a C function, so no other thread runs in between.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, repeat
from operator import and_, le
from sys import getrefcount
from typing import Any

from ..atomic import run_through

# New objects between two cleanups, or more if more are in use.
LEAST = 20_000

_made = 0
_most = LEAST

# The reference count of an object that one list holds.
_LISTED = next(map(getrefcount, [object()]))

_plans: list[tuple[dict[Any, Any], Callable[[Any], Any]]] = []
_others: list[tuple[int, Callable[[], int]]] = []


def table_of_plans(table: dict[Any, Any], plan_of: Callable[[Any], Any] = lambda found: found) -> None:
    """Drop entries of `table` from now on when nothing but such tables holds their plans.

    `plan_of` returns the plan of an entry's value; `None` if it has none; or a table of such values, which stays until
    it is empty.
    """
    _plans.append((table, plan_of))


def look_through(drop: Callable[[], int], turn: int) -> None:
    """Call `drop` after each search of the plans, in the order of turns; it returns how many are left."""
    _others.append((turn, drop))
    _others.sort(key=lambda each: each[0])


def note_new() -> None:
    """Note that an object was made for one of the tables, before others are."""
    global _made
    _made += 1
    if _made > _most:
        drop_unused()


def drop_unused() -> None:
    """Drop the values that have no other reference from all tables."""
    global _made, _most
    _made = 0
    left = _drop_plans()
    for _, drop in _others:
        left += drop()
    _most = max(LEAST, left)


def drop_unheld(table: dict[Any, Any], own: int = 0) -> int:
    """Drop the values to which only `table` and `own` further references refer; return the number of the rest."""
    keys = list(table)
    _drop(table, keys, are_unheld(list(map(table.get, keys)), repeat(1 + own)))
    return len(table)


def are_unheld(objects: Sequence[object], counts: Iterable[int]) -> Iterator[bool]:
    """Yield for each object whether at most `counts` references hold it, besides the list it is passed in."""
    return map(le, map(getrefcount, objects), map(_LISTED.__add__, counts))


def drop_rules(table: dict[Any, Any]) -> int:
    """Call `drop_unheld` for rules, which are in use too while something holds their operation."""
    keys = list(table)
    rules = list(map(table.get, keys))
    ops = [rule.op for rule in rules if rule is not None]
    if len(ops) == len(rules):
        # Besides `ops`, an operation is held by the table, the rule, `keys`, and as the key that is being decided on.
        _drop(table, keys, map(and_, are_unheld(rules, repeat(1)), are_unheld(ops, repeat(4))))
    return len(table)


def _drop(table: dict[Any, Any], keys: Sequence[object], unused: Iterable[bool]) -> None:
    run_through(map(table.pop, compress(keys, unused), repeat(None)))


def _drop_plans() -> int:
    tables = [each for table, plan_of in _plans for each in _with_inner(table, plan_of)]
    plans = [plan_of(value) for table, plan_of in tables for value in list(table.values())]
    times = Counter(map(id, plans))
    distinct = list({id(plan): plan for plan in plans}.values())
    # Each is in its tables, and as often in the list above.
    unheld = are_unheld(distinct, [2 * times[id(plan)] for plan in distinct])
    in_use = {id(plan) for plan, is_free in zip(distinct, list(unheld), strict=True) if not is_free}
    in_use.discard(id(None))
    for table, plan_of in tables:
        found = [(key, plan_of(value)) for key, value in list(table.items())]
        unused = [key for key, plan in found if not (plan if isinstance(plan, dict) else id(plan) in in_use)]
        run_through(map(table.pop, unused, repeat(None)))
    return sum(len(table) for table, _ in tables)


def _with_inner(table: dict[Any, Any], plan_of: Callable[[Any], Any]) -> Iterator[tuple[dict[Any, Any], Any]]:
    """Yield the tables within a table, then the table."""
    for value in list(table.values()):
        inner = plan_of(value)
        if isinstance(inner, dict):
            yield inner, plan_of
    yield table, plan_of
