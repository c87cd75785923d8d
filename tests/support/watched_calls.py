"""What one watched call of a function did."""

from collections.abc import Callable
from typing import Any

from torch_xla._engine.modes.facts import Facts
from torch_xla._engine.modes.host_trace import Changing
from torch_xla._engine.modes.reads import Reads
from torch_xla._engine.modes.recording import record
from torch_xla._engine.modes.signature import taken_apart
from torch_xla._engine.record import step
from torch_xla._engine.record.device import device_for


def facts_of(function: Callable[..., Any], *args: Any) -> Facts:
    """Of the second call, which knows what the first has looked at."""
    known: Reads | None = None
    found = Facts()
    for _ in range(3):
        step.end_step()
        call = taken_apart(args, {})
        _, found = record(function, args, {}, call, device_for(None), known, (), Changing(), step.end_step)
        if known is not None and not found.only_learned:
            break
        known = found.reads if known is None else known.with_those_of(found.reads)
    return found
