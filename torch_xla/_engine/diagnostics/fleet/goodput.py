"""Goodput: the share of a job's time that its steps took, and what took the rest.

`metrics/accounts.py` books what the engine marks: compiling, waiting for input or for other processes, checkpoints. The
time between is a step if the device worked in it, or operations were recorded, and idle if not. A thread decides that
once a second, so the steps themselves cost nothing.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...atomic import lock
from ...metrics import accounts, counters
from ...step import in_flight
from ...tensor import device as devices
from .restarts import Restart

logger = logging.getLogger("torch_xla.goodput")

# Seconds between two decisions, and between two lines of the log.
TICK = 1.0
MINUTE = 60.0

_started_programs = counters.counter("ExecuteComputation")
_ended_steps = counters.counter("MarkStep")


@dataclass(frozen=True)
class Goodput:
    """Where the time of this process went since the import of `torch_xla`, or between two readings (`after - before`).

    In a process that `torchrun` started again, since the process before it was last alive. `seconds` has every account,
    and their sum is `total`. `steps` counts the ends of steps.
    """

    seconds: dict[str, float]
    steps: int

    @property
    def total(self) -> float:
        """The seconds of all accounts."""
        return sum(self.seconds.values())

    @property
    def fraction(self) -> float:
        """The share of the time that steps took, from 0 to 1."""
        return self.seconds[accounts.STEP] / self.total if self.total else 0.0

    @property
    def step_seconds(self) -> float:
        """The mean time of a step, without what other accounts took; 0 before the first step."""
        return self.seconds[accounts.STEP] / self.steps if self.steps else 0.0

    def __sub__(self, before: "Goodput") -> "Goodput":
        seconds = {name: value - before.seconds[name] for name, value in self.seconds.items()}
        return Goodput(seconds, self.steps - before.steps)

    def __str__(self) -> str:
        taken = sorted(self.seconds.items(), key=lambda each: -each[1])
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in taken if seconds >= 0.05)
        each = f", {self.step_seconds * 1e3:.1f} ms each" if self.steps else ""
        return f"goodput {self.fraction:.1%} of {self.total:.1f} s ({parts}); {self.steps} steps{each}"


class _Steps:
    """The number of steps, which goes on where the metrics are cleared."""

    def __init__(self) -> None:
        self.count = self._seen = 0

    def now(self) -> int:
        seen = _ended_steps.value
        self.count += seen - self._seen if seen >= self._seen else seen
        self._seen = seen
        return self.count


_steps = _Steps()
_progress = (0, 0, 0)
_restart: Restart | None = None  # read at the first reading
_lock = lock()
_ticking = 0  # the process whose thread ticks
# Called every minute, after the line of the log, with what the last minute took.
each_minute: list[Callable[[Goodput], None]] = []


def read() -> Goodput:
    """Return the accounts up to now."""
    with _lock:
        return Goodput(accounts.ledger.settle(_open_account(), time.perf_counter()), _steps.now())


def _open_account() -> str:
    """Return the account of the time since the last call that nothing has booked."""
    global _progress, _restart
    recorded = sum(len(device.tape.code) for device in devices.existing_devices())
    now = _started_programs.value, _ended_steps.value, recorded
    worked, _progress = now != _progress, now
    if _restart is None:
        _restart = Restart(time.time() - (time.perf_counter() - accounts.ledger.began))
        accounts.ledger.add(accounts.RECOVERY, _restart.missing)
        return accounts.RECOVERY if _restart.is_recovering else accounts.IDLE  # it was starting
    if _restart.recovers():
        return accounts.RECOVERY
    return accounts.STEP if worked or _is_busy() else accounts.IDLE


def _is_busy() -> bool:
    """Return whether a device still computes what it was given."""
    for flight in list(in_flight.by_target.values()):
        try:
            _, ends, *_ = flight.started[-1]
            if not all(end.is_ready() for end in in_flight.still_there(ends)):
                return True
        except (IndexError, RuntimeError):  # another thread took it, or it failed or was donated
            continue
    return False


def apply_settings() -> None:
    """Start the thread as soon as the process uses a device. It is called again at each new program."""
    global _ticking
    if _ticking != os.getpid() and devices.existing_devices():
        _ticking = os.getpid()
        threading.Thread(target=_tick, name="torch_xla-goodput", daemon=True).start()


def _tick() -> None:
    last, due = read(), time.monotonic() + MINUTE
    while True:
        if _restart is not None:
            _restart.give_sign()
        time.sleep(TICK)
        now = read()
        if time.monotonic() >= due:
            due += MINUTE
            minute, last = now - last, now
            logger.info("%s", minute)
            for call in each_minute:
                try:
                    call(minute)
                except Exception:  # the thread must go on
                    logger.warning("%r failed", call, exc_info=True)
