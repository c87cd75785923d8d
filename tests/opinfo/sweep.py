"""Many entries, in processes of their own: one that crashes or hangs costs its own entry and no other."""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from typing import Any

from .entries import Entry

# A function that checks an entry with a number of samples.
Check = Callable[[Entry, int], Any]

# The number of entries after which a process is replaced: compiled programs stay in memory until it ends.
ENTRIES_OF_A_PROCESS = 150


def _work(connection: Connection, most_samples: int, check: Check | None = None) -> None:
    import jax
    import torch

    from torch_xla._engine.step.schedule import clear_schedules

    from .check import Verdict, check_entry

    check = check or check_entry
    torch.set_num_threads(1)
    while (entry := connection.recv()) is not None:
        started = time.perf_counter()
        try:
            verdict = check(entry, most_samples)
        except Exception:
            verdict = Verdict(entry, failures=[("harness", traceback.format_exc()[-1500:])])
        verdict.seconds = time.perf_counter() - started
        connection.send(verdict)
        clear_schedules()
        jax.clear_caches()


class _Worker:
    def __init__(self, most_samples: int, check: Check | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, most_samples, check), daemon=True)
        self.process.start()
        theirs.close()
        self.entry: Entry | None = None
        self.started = 0.0
        self.done = 0

    def give(self, entry: Entry) -> None:
        self.entry, self.started = entry, time.monotonic()
        self.connection.send(entry)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def sweep(
    entries: Iterable[Entry],
    most_samples: int,
    jobs: int,
    patience: float,
    report: Callable[[Any], None],
    check: Check | None = None,
) -> None:
    """Checks `entries` in `jobs` processes and calls `report` with each verdict. `patience` is in seconds an entry.

    `check` is `check_entry`, or another function that other processes can import.
    """
    from .check import Verdict

    os.environ["XLA_HISTORY"] = "0"  # the reasons for compilations are not needed
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""
    left = list(entries)[::-1]
    workers: list[_Worker] = []
    while left or any(worker.entry for worker in workers):
        for worker in [w for w in workers if w.entry is None and w.done >= ENTRIES_OF_A_PROCESS]:
            worker.end()
            workers.remove(worker)
        while left and len(workers) < jobs:
            workers.append(_Worker(most_samples, check))
        for worker in workers:
            if left and worker.entry is None:
                worker.give(left.pop())
        busy = [worker for worker in workers if worker.entry is not None]
        ready = wait([worker.connection for worker in busy], timeout=1)
        for worker in busy:
            assert worker.entry is not None
            if worker.connection in ready:
                try:
                    report(worker.connection.recv())
                    worker.entry, worker.done = None, worker.done + 1
                    continue
                except EOFError:
                    worker.process.join()
                    text = f"the process ended with {worker.process.exitcode}"
                    report(Verdict(worker.entry, failures=[("crashes", text)]))
            elif time.monotonic() - worker.started > patience:
                report(Verdict(worker.entry, failures=[("hangs", f"no answer in {patience:g} s")]))
            else:
                continue
            worker.end()
            workers.remove(worker)
    for worker in workers:
        worker.end()
