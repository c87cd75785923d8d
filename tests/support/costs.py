"""The cost of a call in calls of Python: a bound that holds on every machine, however busy it is."""

import time
from collections.abc import Callable


def _nothing() -> None:
    pass


def _seconds(call: Callable[[], object], number: int) -> float:
    start = time.thread_time()
    for _ in range(number):
        call()
    return time.thread_time() - start


def in_calls(call: Callable[[], object], number: int = 200) -> float:
    """How many calls of an empty function take as long as one `call()`: of each the quickest, measured in turns."""
    found = [(_seconds(call, number), _seconds(_nothing, 10_000)) for _ in range(30)]
    return min(ours for ours, _ in found) / number / (min(plain for _, plain in found) / 10_000)
