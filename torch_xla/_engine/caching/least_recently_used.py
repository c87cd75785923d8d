"""Tables that drop their least recently used entries first.

A value is stamped where it is used, which costs less than moving it to the end of its table: that takes the hash of its
key again, and the key of a step is as long as the step.
"""

import itertools
from collections.abc import Callable
from typing import Any

# The next stamp, for the attribute `used` of a value.
now: Callable[[], int] = itertools.count(1).__next__


def trim(table: dict[Any, Any], most: int) -> None:
    """Drop the least recently used eighth of `table` once it holds more than `most` entries."""
    if len(table) > most:
        oldest = sorted(table.items(), key=lambda item: int(item[1].used))
        for key, _ in oldest[: len(table) - most + most // 8]:
            del table[key]
