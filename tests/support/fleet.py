"""Processes of one program that stay, so that many tests share the price of their start.

Each runs functions of test modules that are sent to it by name, all of them the same function at a time. A fleet that
does not answer in time is killed, and its test fails. If the test's process ended before, the fleet ends by itself.
"""

import faulthandler
import gc
import importlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from tests.support import compiler, forked
from torch_xla._engine.distributed import launch

SECONDS = 300


class Fleet:
    """`count` processes of one program, which compile quickly or `as_users` do."""

    def __init__(self, count: int, as_users: bool = False) -> None:
        self.count = count
        context = forked.context()
        pairs = [context.Pipe() for _ in range(count)]
        self.ends: list[Any] = [ours for ours, _ in pairs]
        theirs = [end for _, end in pairs]
        self.context: Any = launch.start(_serve, (theirs, as_users), count, False, True, "forkserver")
        for end in theirs:
            end.close()

    def run(self, function: Callable[..., Any], *args: Any, seconds: float = SECONDS) -> list[Any]:
        """What `function(*args)` returned in each process, in order; raises what one raised, with its traceback."""
        for end in self.ends:
            end.send((function.__module__, function.__qualname__, args, seconds))
        answers = []
        for index, end in enumerate(self.ends):
            if not end.poll(seconds):
                self.kill()
                raise TimeoutError(f"process {index} of {self.count} did not answer within {seconds} s")
            try:
                answers.append(end.recv())
            except (EOFError, OSError):
                answers.append((False, f"process {index} ended with code {self.context.processes[index].exitcode}"))
        for index, (is_result, answer) in enumerate(answers):
            assert is_result, f"in process {index} of {self.count}: {answer}"
        return [answer for _, answer in answers]

    def end(self) -> None:
        """Lets the processes end, and kills those that do not."""
        for end in self.ends:
            end.close()
        for process in self.context.processes:
            process.join(20)
        self.kill()

    def kill(self) -> None:
        """Ends what is left of the processes."""
        for process in self.context.processes:
            process.kill()
        for process in self.context.processes:
            process.join(5)


def _serve(index: int, ends: list[Connection], as_users: bool) -> None:
    if not as_users:
        compiler.be_quick()  # each of them compiles, and there are few cores
    gc.freeze()  # to collect garbage takes less time so
    own = ends[index]
    for other, end in enumerate(ends):
        if other != index:
            end.close()
    while True:
        try:
            module, name, args, seconds = own.recv()
        except EOFError:
            return
        faulthandler.dump_traceback_later(seconds + 60, exit=True)
        try:
            answer: Any = True, getattr(importlib.import_module(module), name)(*args)
        except Exception:
            answer = False, traceback.format_exc()
        finally:
            faulthandler.cancel_dump_traceback_later()
        own.send(answer)


_fleets: dict[tuple[int, bool], Fleet] = {}


def fleet_of(count: int, as_users: bool = False) -> Fleet:
    """The fleet of `count` processes; several tests share it."""
    fleet = _fleets.get((count, as_users))
    if fleet is None or not all(process.is_alive() for process in fleet.context.processes):
        _fleets[count, as_users] = fleet = Fleet(count, as_users)
    return fleet


@contextmanager
def fleets() -> Iterator[None]:
    """A `with` block at whose end no fleet is left."""
    try:
        yield
    finally:
        while _fleets:
            _fleets.popitem()[1].end()
