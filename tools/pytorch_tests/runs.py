"""Run tests in workers that cannot end the run: one that hangs is killed, one that crashes is replaced."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.compiler import be_quick

ROOT = Path(__file__).parents[2]
IMPORTING = 300.0  # seconds that a worker may take to import its file
WAITING = 3  # times as long may pass as a worker may work: others may use the processors, and what hangs does not work
MEGABYTES = 6000  # a worker that has grown so large is replaced

Ending = dict[str, str | float]

_NONE: Ending = {"outcome": "", "message": "", "where": "", "seconds": 0.0, "megabytes": 0}


class NoAnswer(Exception):
    """The worker gave none: it took too long, or ended."""


@dataclass
class Worker:
    """A process that runs tests of one file on one device."""

    process: subprocess.Popen[str]
    log: Path
    tests: list[str]

    @classmethod
    def start(cls, folder: Path, name: str, device: str) -> "Worker":
        """Start a worker; raise `NoAnswer` with the end of its output if the file cannot be imported."""
        be_quick()
        handle, log = tempfile.mkstemp(prefix=f"{name}-{device}-", suffix=".log")
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), str(folder), name, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=handle,
            text=True,
            # The tests' programs must not get into the user's disk cache.
            env={"XLA_PERSISTENT_CACHE_PATH": "", **os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,  # so that what it starts can be ended with it
        )
        os.close(handle)
        worker = cls(process, Path(log), [])
        worker.tests = json.loads(worker._line(IMPORTING))
        return worker

    def run(self, test: str, seconds: float) -> Ending:
        """Return how this test ended; raise `NoAnswer` if it ran longer than `seconds`, or ended the process."""
        assert self.process.stdin
        self.process.stdin.write(test + "\n")
        self.process.stdin.flush()
        ending: Ending = json.loads(self._line(seconds))
        return ending

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self.log.unlink(missing_ok=True)

    def _worked(self) -> float:
        """Return the seconds of processor time so far, if the system reports them."""
        try:
            times = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")

    def _line(self, seconds: float) -> str:
        assert self.process.stdout
        worked, deadline = self._worked() + seconds, time.monotonic() + WAITING * seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not (ready := selector.select(0.5)):
                if self._worked() > worked or time.monotonic() > deadline:
                    break
        line = self.process.stdout.readline() if ready else ""
        if line:
            return line
        if not ready:
            raise NoAnswer(f"did not end within {seconds:.0f} s")
        code = self.process.wait()
        wrote = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        raise NoAnswer(f"the process ended ({how}): {' | '.join(wrote[-3:])}"[:2000])


def run(
    folder: Path,
    name: str,
    device: str,
    tests: Sequence[str],
    patience: float,
    report: Callable[[str, Ending], None],
    worker: Worker | None = None,
) -> None:
    """Runs these tests of the file, from the first on in `worker` if there is one, and ends it.

    Tells `report` how each test ended; raises `NoAnswer` if the file cannot be imported.
    """
    try:
        for test in tests:
            worker = worker or Worker.start(folder, name, device)
            if test not in worker.tests:
                report(test, {**_NONE, "outcome": "skipped", "message": f"is not made for {device}"})
                continue
            try:
                ending = worker.run(test, patience)
            except (NoAnswer, BrokenPipeError) as error:
                outcome = "too long" if worker.process.poll() is None else "crashed"
                ending = {**_NONE, "outcome": outcome, "message": str(error)}
            report(test, ending)
            if ending["outcome"] in ("too long", "crashed") or float(ending["megabytes"]) > MEGABYTES:
                worker.end()
                worker = None
    finally:
        if worker:
            worker.end()
