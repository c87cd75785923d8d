"""Stragglers: compare the step times of all processes every minute, and name the slow one and what it waited for.

Processes that exchange data have steps of equal length, since the fast ones wait for the slow one. So what is compared
is a process's own part of its steps: their time without the waits for other processes and for the device. Each
process writes two numbers and its accounts to the service by which the processes met; process 0 reads all of them.
"""

import json
import logging
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...metrics import accounts
from ...processes import heartbeats, identity
from ...step import waits_among_processes
from . import goodput
from .goodput import Goodput

logger = logging.getLogger("torch_xla.stragglers")

# A process is slow if its own part of a step is longer than that of the median process by this factor, and by this part
# of a whole step.
FACTOR = 1.2
PART = 0.05
# Older numbers, in seconds, are of a process that does not run steps any more.
_OLD = 150.0

_WORDS = {
    accounts.INPUT: "waiting for input",
    accounts.COMPILE: "compiling",
    accounts.CHECKPOINT: "saving checkpoints",
    accounts.RECOVERY: "recovering",
    accounts.IDLE: "work without the device",
    accounts.STEP: "running Python code of the step",
}


@dataclass(frozen=True)
class Pace:
    """The mean time of a step of one process: the whole, and by account without the waits."""

    whole: float
    own: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """The process's own part of a step."""
        return sum(self.own.values())


@dataclass(frozen=True)
class Straggler:
    """A slow process: its own seconds a step, those of the median process, and what most of the difference is."""

    process: int
    seconds: float
    median: float
    account: str
    excess: float

    def __str__(self) -> str:
        return (
            f"Process {self.process} is slow: a step has {self.seconds * 1e3:.0f} ms of its own, that of the median "
            f"process {self.median * 1e3:.0f} ms. It took {self.excess * 1e3:.0f} ms more for "
            f"{_WORDS[self.account]}."
        )


def pace(spent: Goodput, waited: float) -> Pace | None:
    """Return the pace in the time `spent`, without the `waited` seconds; `None` without a step."""
    if not spent.steps:
        return None
    own = {name: seconds / spent.steps for name, seconds in spent.seconds.items() if name != accounts.COMMUNICATION}
    own[accounts.STEP] = max(0.0, own[accounts.STEP] - waited / spent.steps)
    return Pace(spent.total / spent.steps, own)


def slowest(paces: Mapping[int, Pace]) -> Straggler | None:
    """Return the slow process, if there is one."""
    if len(paces) < 2:
        return None
    index = max(paces, key=lambda each: paces[each].seconds)
    found, others = paces[index], [pace for each, pace in paces.items() if each != index]
    median = statistics.median(each.seconds for each in others)
    if found.seconds < FACTOR * median or found.seconds - median < PART * found.whole:
        return None
    excess = {name: found.own[name] - statistics.median(each.own[name] for each in others) for name in found.own}
    account = max(excess, key=lambda name: excess[name])
    return Straggler(index, found.seconds, median, account, excess[account])


_waited = 0.0


def compare(minute: Goodput) -> None:
    """Write the pace of this minute where process 0 reads it; in process 0, name the slow process."""
    global _waited
    waited, _waited = waits_among_processes.waited - _waited, waits_among_processes.waited
    watch, found = heartbeats.watch(), pace(minute, waited)
    if watch is None:
        return
    if found is not None:
        watch.publish("pace", json.dumps([time.time(), found.whole, found.own]))
    if identity.process_index() == 0:
        slow = slowest(_read(watch.published("pace")))
        if slow is not None:
            logger.warning("%s", slow)


def _read(texts: Mapping[int, str]) -> dict[int, Pace]:
    by_process: dict[int, Any] = {index: json.loads(text) for index, text in texts.items()}
    return {index: Pace(whole, own) for index, (when, whole, own) in by_process.items() if time.time() - when < _OLD}


def begin() -> None:
    """Compare every minute."""
    if compare not in goodput.each_minute:
        goodput.each_minute.append(compare)
