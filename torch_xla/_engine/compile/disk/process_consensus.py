"""Agree with the other processes whether all load a common program from disk or all compile it.

Executables compiled apart may differ: a compiler that measures kernels may choose others each time. Where it measures
in all processes together, they would wait for a process that loads the program from disk. A program that each process
runs on its own arrays needs no agreement: the processes share only collectives, in the order of recording.
"""

from ...atomic import lock
from ...caching.bounded import put_last
from ...processes import coordination, heartbeats
from ...runtime.device_assignment import Target
from ..executable_key import Key

# A process that has waited this long for the others' answers compiles; all follow the first decision.
_SECONDS = 30.0

_lock = lock()
# How often each of the latest programs was requested. A dropped program continues from the highest dropped count, so
# that no number is used twice. All processes request alike, so they drop entries in the same order.
_asked: dict[str, int] = {}
_MOST = 4096
_left = 0


def is_needed(target: Target) -> bool:
    """Return whether the processes of `target` must have the same executable."""
    return target.is_spread and len(target.processes) > 1


def start() -> str:
    """Return the name of this start of the program, which its processes have in common."""
    return coordination.attempt()


def have(key: Key, written: str) -> bool:
    """Return whether each process of the program has an executable with this key that they compiled in one start.

    Waits until that is known; the processes ask alike. `written` is the start in which that on this process's disk was
    compiled; empty: there is none. Raises `PeerError` if another process fails meanwhile.
    """
    watch = heartbeats.watch()
    if watch is None:
        return False
    return agreed(watch, key, written, _times_asked(key.digest))


def _times_asked(digest: str) -> int:
    global _left
    with _lock:
        before = dict(_asked)
        time = put_last(_asked, digest, _asked.get(digest, _left) + 1, _MOST)
        _left = max([_left, *(before[each] for each in before.keys() - _asked.keys())])
    return time


def agreed(watch: heartbeats.Watch, key: Key, written: str, time: int) -> bool:
    """Agree on `have`, asked for this key for the `time`th time."""
    place = f"kept/{key.digest}/{time}"
    if not written or watch.propose(f"{place}/start", written) != written:
        verdict = watch.propose(place, "compile")
    elif watch.next_number(f"{place}/have") == len(key.target.processes):
        verdict = watch.propose(place, "load")
    else:
        try:
            verdict = coordination.awaited(place, _SECONDS).decode()
        except TimeoutError:
            verdict = watch.propose(place, "compile")
    return verdict == "load"
