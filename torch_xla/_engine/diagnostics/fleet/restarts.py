"""Restarts: how long a process that was started again has been missing, and when it has caught up.

A process that `torchrun` started writes the time into the folder of its run once a second. Its successor finds there
when it was last alive. The folder is of one agent, so both run on one machine and read the same clock.
"""

import os
import time

from ... import config
from ...metrics import counters
from ...processes import heartbeats

_ended_steps = counters.counter("MarkStep")
_repeated_programs = counters.counter("CachedCompile")


class Restart:
    """The restart that made this process, if one did."""

    def __init__(self, began: float) -> None:
        """`began` is when this process began, on the clock `time.time`."""
        place, folder = config.torchrun(), config.torchrun_folder()
        self._path = folder / f"torch_xla_alive_{place.local_rank}" if place and folder else None
        self._is_ours = False
        last = self._last_sign()
        # Seconds from the last sign of life of the predecessor to the beginning of this process.
        self.missing = 0.0 if last is None else max(0.0, began - last)
        self.is_recovering = last is not None or config.restart_count() > 0

    def recovers(self) -> bool:
        """Return whether this process was started again and has not caught up: its first step has not ended.

        Without ends of steps, a program that runs a second time shows that the loop has begun.
        """
        if self.is_recovering and (_ended_steps.value or _repeated_programs.value):
            self.is_recovering = False
        return self.is_recovering

    def give_sign(self) -> None:
        """Write for a successor that this process is alive now."""
        if self._path is None:
            return
        try:
            if not self._is_ours:
                self._path.write_text(str(os.getpid()))
                self._is_ours = True
            now = time.time()  # the file's own time may be that of another machine's clock
            os.utime(self._path, (now, now))
        except OSError:  # the run has ended, and its folder is gone
            self._path = None

    def _last_sign(self) -> float | None:
        """Return when the process before this one was alive, or `None` if there was none."""
        if self._path is None or not self._path.exists():
            return None
        pid = self._path.read_text()
        if pid and heartbeats.exists(int(pid)):  # this process is a helper that it started, and not its successor
            self._path = None
            return None
        return self._path.stat().st_mtime
