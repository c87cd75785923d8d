"""Dictionaries of bounded size: each keeps its latest entries.

Tables keyed by operator, dtype or device are small by nature and need no bound. Values compared by identity are bounded
by `caching/interning.py`, and tables that drop the least recently used entry by `caching/least_recently_used.py`.
"""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def put_last(table: dict[K, V], key: K, value: V, most: int) -> V:
    """Set `table[key] = value` as the last entry. Above `most` entries, drop the first eighth of them."""
    table.pop(key, None)
    table[key] = value
    if len(table) > most:
        for first in list(table)[: most // 8 + 1]:
            table.pop(first, None)
    return value
