"""Limit how many runs on several devices of this host may be in flight.

XLA's client for the CPU lets 32 runs wait on a device for those before them, and holds the next one up on its way to
that device. A program over several devices of one process has begun on some of them by then, and these wait in a
collective for the one that is held up: for ever, or for 40 seconds, when XLA ends the process. So a run begins when the
one that came so many before it has ended.
"""

from collections import deque
from types import SimpleNamespace
from typing import Any

from .device_assignment import Target

# Less than XLA takes: JAX runs programs of which nobody is told. With 16 the host waited more than it had to.
MOST = 28

# What has always ended. Written in C, as all that stands between a run and its results (`atomic`).
NEVER = SimpleNamespace(block_until_ready=bool)

# For each of the last runs, the oldest first, what can be waited for: the run has ended then.
last: deque[Any] = deque([NEVER] * MOST, maxlen=MOST)


def are_limited(target: Target) -> bool:
    """Whether a run on this target has to be noted among the last, and to wait for the first of them."""
    return target.is_host and len(target.local) > 1


def forget(place: int, run: Any) -> None:
    """Has nobody wait any more for a run that has ended. If it failed, whoever reads its results is told."""
    if last[place] is run:
        last[place] = NEVER
