"""Accounts of time: each second of the program belongs to one of them.

`with spent(INPUT):` books the time of a block. Blocks may be nested, and the time of the inner one is not booked on the
outer one. Time outside all blocks stays open until `settle` books it: the caller knows whether the device worked then.
So the sum of the accounts and of the open time is always the time since the start, with what `add` put before it.

Only the main thread is booked: the threads beside it work at the same time. A step costs two clock reads for each block
that it enters, and nothing else.
"""

import os
import threading
import time
from types import TracebackType

from ..atomic import lock

COMPILE = "compile"
INPUT = "input"
STEP = "step"
COMMUNICATION = "communication"
CHECKPOINT = "checkpoint"
RECOVERY = "recovery"
IDLE = "idle"
NAMES = (COMPILE, INPUT, STEP, COMMUNICATION, CHECKPOINT, RECOVERY, IDLE)


class Ledger:
    """The accounts of one thread."""

    def __init__(self, now: float, thread: int | None = None) -> None:
        self.thread = thread
        self.began = self._since = now
        self._seconds = dict.fromkeys(NAMES, 0.0)
        self._open = 0.0
        self._blocks: list[str] = []
        self._lock = lock()

    def _book(self, now: float) -> None:
        # Another thread may have read the clock earlier and got the lock later.
        passed, self._since = max(0.0, now - self._since), max(now, self._since)
        if self._blocks:
            self._seconds[self._blocks[-1]] += passed
        else:
            self._open += passed

    def enter(self, account: str, now: float) -> None:
        """Book the time from `now` on this account."""
        with self._lock:
            self._book(now)
            self._blocks.append(account)

    def leave(self, now: float) -> None:
        """Book the time from `now` on the account of the block around this one."""
        with self._lock:
            self._book(now)
            self._blocks.pop()

    def add(self, account: str, seconds: float) -> None:
        """Book time from before the start."""
        with self._lock:
            self._seconds[account] += seconds

    def settle(self, account: str, now: float) -> dict[str, float]:
        """Book the open time on this account, and return the seconds of all accounts up to `now`."""
        with self._lock:
            self._book(now)
            self._seconds[account] += self._open
            self._open = 0.0
            return dict(self._seconds)


ledger = Ledger(time.perf_counter(), threading.main_thread().ident)


class Spent:
    """A block whose time is booked on one account."""

    __slots__ = ("_account", "_booked")

    def __init__(self, account: str) -> None:
        self._account = account

    def __enter__(self) -> None:
        # The ledger of a forked process is another one: a block that was entered before the fork is not in it.
        self._booked = ledger if threading.get_ident() == ledger.thread else None
        if self._booked is not None:
            self._booked.enter(self._account, time.perf_counter())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._booked is not None:
            self._booked.leave(time.perf_counter())


def spent(account: str) -> Spent:
    """Return a `with` block whose time is booked on `account`."""
    if account not in NAMES:
        raise ValueError(f"account(): there is no account {account!r}; there are {', '.join(NAMES)}")
    return Spent(account)


def _begin_anew() -> None:
    global ledger
    ledger = Ledger(time.perf_counter(), threading.get_ident())


os.register_at_fork(after_in_child=_begin_anew)
