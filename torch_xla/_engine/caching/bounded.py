"""Dictionaries of bounded size: each keeps its latest entries.

What is kept by operator, dtype or device, of which there are only so many, needs no bound. What is compared by identity
has another (`caching/interning.py`), and so has what tells when it was used last (`caching/least_recently_used.py`).
"""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def put_last(table: dict[K, V], key: K, value: V, most: int) -> V:
    """`table[key] = value`, the last of all; of more than `most`, those that came first leave, an eighth at a time."""
    table.pop(key, None)
    table[key] = value
    if len(table) > most:
        for first in list(table)[: most // 8 + 1]:
            table.pop(first, None)
    return value
