"""Count pending operations when counters are read; recording itself counts nothing."""

import time

from .. import metrics
from ..ir.graph import decode, effective, needed
from ..ir.tape import Tape
from ..metrics import counters, samples
from ..tensor.device import LOCK, Device, existing_devices
from .liveness import held
from .schedule import counter_name


class _Since:
    """The operations that were recorded since counters, or samples, were cleared."""

    def __init__(self) -> None:
        self._cleared_at: dict[int, tuple[Tape, int]] = {}

    def forget(self) -> None:
        """Leave out what is recorded by now."""
        with LOCK:
            self._cleared_at = {d.index: (d.tape, len(d.tape.code)) for d in existing_devices() if d.tape.code}

    def pending(self, device: Device) -> list[object]:
        """Return the operators that a sync would run, in order."""
        tape = device.tape
        cleared, start = self._cleared_at.get(device.index, (None, 0))
        if len(tape.code) <= (start if cleared is tape else 0):
            return []
        live = held(tape.values)
        _, operations, producer = decode(tape.code)
        # A finalizer may have recorded operations meanwhile, behind the values that `live` covers.
        pending = [
            slot
            for slot, (made_by, is_held) in enumerate(zip(producer, live, strict=False))
            if is_held and made_by >= 0
        ]
        chosen = needed(operations, producer, pending, effects=effective(operations))
        first = start if cleared is tape else 0
        return [operations[index].plan.op for index in chosen if operations[index].position >= first]


_uncounted, _unsampled = _Since(), _Since()


def begin() -> None:
    """Let counters and metrics ask the tapes."""
    metrics.metric("LazyTracing")
    counters.uncounted.append((_operations, _uncounted.forget))
    samples.coming.append((_tracing, _unsampled.forget))


def _operations() -> dict[str, int]:
    """Return how many operations of each kind a sync would run now."""
    found: dict[str, int] = {}
    with LOCK:
        for device in existing_devices():
            for op in _uncounted.pending(device):
                name = counter_name(op)
                found[name] = found.get(name, 0) + 1
    return found


def _tracing() -> dict[str, float]:
    """Return the time since the first operand of the step that is being recorded."""
    with LOCK:
        started = [device.tape.started for device in existing_devices() if _unsampled.pending(device)]
    return {"LazyTracing": float(time.perf_counter_ns() - min(started))} if started else {}
