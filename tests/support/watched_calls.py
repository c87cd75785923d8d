"""The record of one watched call of a function."""

from collections.abc import Callable
from typing import Any

from torch_xla._engine.compiled.replay.accessed_names import Reads
from torch_xla._engine.compiled.replay.argument_spec import taken_apart
from torch_xla._engine.compiled.replay.call_record import Facts
from torch_xla._engine.compiled.replay.scalar_tracing import Changing
from torch_xla._engine.compiled.replay.watched_call import record
from torch_xla._engine.step import end_of_step
from torch_xla._engine.tensor.device import device_for


def facts_of(function: Callable[..., Any], *args: Any) -> Facts:
    """Of the second call, which knows what the first has looked at."""
    known: Reads | None = None
    found = Facts()
    for _ in range(3):
        end_of_step.end_step()
        call = taken_apart(args, {})
        _, found = record(function, args, {}, call, device_for(None), known, (), Changing(), end_of_step.end_step)
        if known is not None and not found.only_learned:
            break
        known = found.reads if known is None else known.with_those_of(found.reads)
    return found
