"""Keep a history in bounded memory: compilations, waiting, fallbacks, and the last steps.

It listens from the import on, which costs a microsecond or two for a step or a value that is read; `keep(False)` ends
it.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...metrics import events
from ...metrics.events import Compilation, Evaluation, Execution, Fallback, StepEnd, Transfer, Wait
from ...metrics.observers import observers
from ...metrics.user_lines import Line
from ...runtime import device_memory
from ...tensor import device as devices
from ...tensor import variable_names
from ..recompiles import causes
from ..sharding import communication
from ..waiting import wait_costs

_MOST_EVENTS = 8192
_MOST_STEPS = 4096
_MOST_MEMORY = 2048
# Memory is looked at if that takes at most this share of the time.
_SHARE_FOR_MEMORY = 0.002


class PastExecution(NamedTuple):
    """An execution as kept in the history, without its program."""

    start: float
    seconds: float
    operations: int


@dataclass(slots=True)
class FallbackCost:
    """An operator that ran on the CPU."""

    operator: str
    count: int = 0
    seconds: float = 0.0
    lines: dict[Line, int] = field(default_factory=dict)


# The last evaluations, waits, transfers and fallbacks; executions only while a listener watches closely.
recent: "deque[Evaluation | Wait | Transfer | Fallback | PastExecution]" = deque(maxlen=_MOST_EVENTS)
_steps: "deque[tuple[Any, ...]]" = deque(maxlen=_MOST_STEPS)
# (time, bytes in use) on the first device
memory_used: "deque[tuple[float, int]]" = deque(maxlen=_MOST_MEMORY)
fallbacks: dict[str, FallbackCost] = {}

_since = time.perf_counter()
_is_kept = False


def keep(yes: bool) -> None:
    """Turn the history on or off; past events stay."""
    global _is_kept
    for listener, kinds in _LISTENERS:
        events.unlisten(listener)
        if yes:
            events.listen(listener, closely=False, kinds=kinds)
    communication.keep(yes)
    _is_kept = yes
    events.keep_steps(_steps if yes else None)
    observers.register("name_buffers", variable_names.name_buffers if yes else None)


def is_kept() -> bool:
    """Return whether the history is kept now."""
    return _is_kept


def steps() -> list[StepEnd]:
    """Return the last steps."""
    return [StepEnd(*each) for each in list(_steps)]


def since() -> float:
    """Return the time of the beginning, by `time.perf_counter`."""
    return _since


def clear() -> None:
    """Forget everything except known programs, so that a recompilation is still recognised."""
    global _since
    for each in (recent, _steps, memory_used, fallbacks):
        each.clear()
    causes.clear()
    wait_costs.clear()
    communication.clear()
    _since = time.perf_counter()
    if _is_kept:
        events.wait_until(0.0)


def _listen(event: Any) -> None:
    kind = event.__class__
    if kind is Compilation:
        causes.note(event)
        wait_costs.note_compilation(event)
    elif kind is Execution:
        recent.append(PastExecution(event.start, event.seconds, len(event.program.graph.operations)))
    elif kind is StepEnd:
        if event.start + event.seconds > events.due:
            look_at_memory()
    else:
        recent.append(event)
        if kind is Evaluation:
            wait_costs.note_evaluation(event)
        elif kind is Wait:
            wait_costs.note_wait(event)
        else:
            _note_fallback(event)


def _note_fallback(event: Fallback) -> None:
    cost = fallbacks.setdefault(event.operator, FallbackCost(event.operator))
    cost.count += 1
    cost.seconds += event.seconds
    line = event.frames[0]
    if line in cost.lines or len(cost.lines) < 100:
        cost.lines[line] = cost.lines.get(line, 0) + 1


# Transfers are the most frequent: nothing is called for them that does not keep them.
_LISTENERS = (
    (recent.append, (Transfer,)),
    (wait_costs.note_transfer, (Transfer,)),
    (_listen, (Compilation, Execution, StepEnd, Evaluation, Wait, Fallback)),
)


def look_at_memory() -> None:
    """Note how much memory the first device uses now."""
    start = time.perf_counter()
    used = device_memory.usage(devices.device_at(devices.current_index()).target.device).used
    now = time.perf_counter()
    memory_used.append((now, used))
    events.wait_until(now + max(0.02, (now - start) / _SHARE_FOR_MEMORY))
