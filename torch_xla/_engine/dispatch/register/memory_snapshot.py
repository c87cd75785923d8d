"""Snapshots of memory, and its history, in the format of `torch.cuda.memory`, which PyTorch's viewer reads.

    torch.xla.memory._record_memory_history()
    ...
    torch.xla.memory._dump_snapshot("memory.pickle")  # for https://pytorch.org/memory_viz

PJRT names no addresses before a program has run, so a buffer gets an address of its own when it is seen first: equal
addresses are one buffer, and nothing else follows from them. A buffer is seen after the program or the transfer that
makes it, and gone at the next one; what a program needs while it runs is in none.
"""

import pickle
import sys
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import jax

from ... import imported_objects
from ...atomic import lock
from ...ir.tape import Value
from ...metrics import events
from ...metrics.user_lines import Line
from ...runtime import device_memory, platform
from ...tensor import device as devices

_ALIGNMENT = 512
_FORMS = ("all", "state", None)


class _Seen:
    """A buffer that was seen: where it would be, how large it is on each device, and which frames made it."""

    def __init__(self, array: jax.Array, address: int, sizes: dict[int, int], frames: list[dict[str, Any]]) -> None:
        self.array = weakref.ref(array)
        self.address = address
        self.sizes = sizes
        self.frames = frames


class _History:
    """The last known buffers, and their later allocations and frees, by ordinal."""

    def __init__(self) -> None:
        self.turn = lock()
        self.next_address = _ALIGNMENT
        self.seen: dict[int, _Seen] = {}
        self.traces: dict[int, deque[dict[str, Any]]] = {}
        self.most: int | None = None  # entries of a trace; None: no history is kept
        self.with_frames = True
        self.is_listening = False

    def look(self, frames: tuple[Line, ...] = ()) -> None:
        """Compare the living buffers with those of the last call."""
        with self.turn:
            living = _living()
            for key, (_, sizes) in living.items():
                known = self.seen.get(key)
                if known is not None and (known.array() is None or known.sizes != sizes):
                    self._forget(key)  # its place in Python's memory is another buffer's now
            for key in self.seen.keys() - living.keys():
                self._forget(key)
            new = living.keys() - self.seen.keys()
            lines = _lines_of(new) if new and self.with_frames else {}
            for key in sorted(new):
                self._add(key, *living[key], lines.get(key), frames)

    def _add(
        self, key: int, array: jax.Array, sizes: dict[int, int], line: Line | None, frames: tuple[Line, ...]
    ) -> None:
        shown = [each for each in (line, *(frame for frame in frames if frame != line)) if each is not None]
        shown_frames = [{"filename": file, "line": number, "name": name} for file, number, name in shown]
        self.seen[key] = seen = _Seen(array, self.next_address, sizes, shown_frames if self.with_frames else [])
        self.next_address += -(-max(sizes.values(), default=1) // _ALIGNMENT) * _ALIGNMENT or _ALIGNMENT
        for action in ("segment_alloc", "alloc"):
            self._trace(action, seen)

    def _forget(self, key: int) -> None:
        seen = self.seen.pop(key)
        for action in ("free_requested", "free_completed", "segment_free"):
            self._trace(action, seen)

    def _trace(self, action: str, seen: _Seen) -> None:
        if self.most is None:
            return
        moment = time.time_ns() // 1000
        for ordinal, size in seen.sizes.items():
            self.traces.setdefault(ordinal, deque(maxlen=min(self.most, sys.maxsize))).append(
                {
                    "action": action, "addr": seen.address, "size": size, "stream": 0, "time_us": moment,
                    "frames": seen.frames, "compile_context": "", "user_metadata": "",
                }
            )  # fmt: skip


_history = _History()


def _living() -> dict[int, tuple[jax.Array, dict[int, int]]]:
    """Return the buffers that live and their bytes by ordinal, by the identity of the array."""
    if not platform.is_started():
        return {}
    found: dict[int, tuple[jax.Array, dict[int, int]]] = {}
    for ordinal, device in zip(devices.ordinals(), platform.local_devices(), strict=False):
        for array, size in device_memory.living_on(device):
            found.setdefault(id(array), (array, {}))[1][ordinal] = size
    return found


def _lines_of(keys: set[int]) -> dict[int, Line | None]:
    """Return the user's lines that made some buffers."""
    found: dict[int, Line | None] = {}
    for thing in imported_objects.alive():
        # Its class is asked for, not the object, which may answer for another.
        if issubclass(type(thing), Value) and id(thing.buffer) in keys:
            found[id(thing.buffer)] = getattr(thing, "line", None)
    return found


def _hear(event: object) -> None:
    _history.look(getattr(event, "frames", ()))


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: object = None,
    clear_history: bool = False,
    **options: object,
) -> None:
    """Keep which buffers come and go from now on, with the user's lines; `None` ends it.

    With "state" no history is kept, and a snapshot tells the lines of what lives. `stacks`, `device` and other options
    of CUDA's change nothing: the lines are Python's, and all devices of the process are watched.
    """
    if enabled not in _FORMS:
        raise ValueError(f"_record_memory_history({enabled!r}): expected one of {', '.join(map(repr, _FORMS))}")
    if clear_history or enabled is not None:
        _history.traces.clear()
    _history.most = max_entries if enabled == "all" else None
    _history.with_frames = context is not None
    if enabled == "all" and not _history.is_listening:
        _history.look()
        events.listen(_hear, events.ALL_FRAMES)
    if enabled != "all" and _history.is_listening:
        events.unlisten(_hear)
    _history.is_listening = enabled == "all"


def memory_snapshot() -> list[dict[str, Any]]:
    """Return the buffers that live, each as a segment with one block, with the lines that made them."""
    _history.look()
    return [
        {
            "device": ordinal, "address": seen.address, "total_size": size, "allocated_size": size,
            "active_size": size, "requested_size": size, "stream": 0,
            "segment_type": "large" if size >= 1 << 20 else "small", "segment_pool_id": (0, 0),
            "is_expandable": False, "frames": seen.frames,
            "blocks": [
                {
                    "address": seen.address, "size": size, "requested_size": size, "state": "active_allocated",
                    "frames": seen.frames,
                }
            ],
        }
        for seen in sorted(_history.seen.values(), key=lambda seen: seen.address)
        for ordinal, size in seen.sizes.items()
    ]  # fmt: skip


def _snapshot(device: object = None) -> dict[str, Any]:
    """Return the buffers that live, and what came and went since `_record_memory_history`."""
    segments = memory_snapshot()
    most = max((*_history.traces, *(each["device"] for each in segments)), default=-1)
    return {
        "segments": segments,
        "device_traces": [list(_history.traces.get(ordinal, ())) for ordinal in range(most + 1)],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Write `_snapshot()` to a file that PyTorch's viewer reads."""
    Path(filename).write_bytes(pickle.dumps(_snapshot()))


# The members of `torch.xla` in this module.
MEMBERS: dict[str, object] = {"memory_snapshot": memory_snapshot}
# Also in `torch.xla.memory`.
PRIVATE_MEMBERS: dict[str, object] = {
    function.__name__: function for function in (_dump_snapshot, _record_memory_history, _snapshot)
}
