"""Limit how many runs on several devices of this host may be in flight.

XLA's client for the CPU queues 32 runs on a device, and blocks the launch of the next run on that device. A program
over several devices of one process has then begun on some of the devices, which wait in a collective for the blocked
one: for ever, or for 40 seconds, when XLA ends the process. So a run begins only when the run `MOST` places before it
has ended.
"""

from collections import deque
from types import SimpleNamespace
from typing import Any

from .device_assignment import Target

# Less than XLA's limit, because JAX also runs programs that are not counted here. With 16 the host waited
# unnecessarily.
MOST = 28

# An object that is always done. Its method is written in C, as everything between a run and its results (`atomic`).
NEVER = SimpleNamespace(block_until_ready=bool)

# An array of each of the last runs, the oldest first. When the array is ready, the run has ended.
last: deque[Any] = deque([NEVER] * MOST, maxlen=MOST)


def are_limited(target: Target) -> bool:
    """Return whether a run on this target counts among the last ones, and waits for the first of them."""
    return target.is_host and len(target.local) > 1


def forget(place: int, run: object) -> None:
    """Forget a run that has ended, so that no thread waits for it. Reading its results raises its error."""
    if last[place] is run:
        last[place] = NEVER
