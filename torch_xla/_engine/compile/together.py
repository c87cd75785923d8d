"""Programs that XLA divides among several processes: all take one from disk, or all compile it.

What is compiled apart may differ: a compiler that measures need not choose the same twice, and where it measures in all
processes at once, one that has the program on disk would be waited for. A program of which each process runs its own on
its own arrays needs none of this: what they have in common are collectives, in the order of the recording.
"""

import threading
from collections import Counter

from ..client import coordination, peers
from ..client.target import Target
from .executable_key import Key

# Who has waited so long for another one's word compiles; all do as the first decides.
_SECONDS = 30.0

_lock = threading.RLock()
_asked: "Counter[str]" = Counter()


def is_needed(target: Target) -> bool:
    """Whether the processes of `target` must have the same executable."""
    return target.is_spread and len(target.processes) > 1


def start() -> str:
    """The name of this start of the program, which its processes have in common."""
    return coordination.attempt()


def have(key: Key, written: str) -> bool:
    """Whether each process of the program has an executable with this key that they compiled in one start.

    Waits until that is known; the processes ask alike. `written` is the start in which that on this process's disk was
    compiled; empty: there is none. Raises `PeerError` if another process fails meanwhile.
    """
    watch = peers.watch()
    if watch is None:
        return False
    with _lock:
        _asked[key.digest] += 1
        time = _asked[key.digest]
    return agreed(watch, key, written, time)


def agreed(watch: peers.Watch, key: Key, written: str, time: int) -> bool:
    """`have`, asked for this key for the `time`th time."""
    place = f"kept/{key.digest}/{time}"
    if not written or watch.settle(f"{place}/start", written) != written:
        verdict = watch.settle(place, "compile")
    elif watch.next_number(f"{place}/have") == len(key.target.processes):
        verdict = watch.settle(place, "load")
    else:
        try:
            verdict = coordination.awaited(place, _SECONDS).decode()
        except TimeoutError:
            verdict = watch.settle(place, "compile")
    return verdict == "load"
