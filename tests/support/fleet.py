"""Processes of one program that stay, so that many tests share the price of their start.

Each runs functions of test modules that are sent to it by name, all of them the same function at a time. A fleet that
does not answer in time, or in which a process failed, is killed, and its test fails: what a failure left on the tapes
of some of its processes is no other test's matter. If the test's process ended before, the fleet ends by itself.
"""

import faulthandler
import gc
import importlib
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

from torch.distributed.checkpoint import CheckpointException

from tests.support import compiler, forked
from torch_xla._engine.distributed import process_launch

SECONDS = 300
# How long others have to answer after one has failed, in seconds: what they wait for may never come.
AFTER_FAILURE = 30

# Gloo's messages, PyTorch's and XLA's, for sockets of the machine that did not connect, before any exchange.
NOT_CONNECTED = ("Gloo connectFullMesh failed", "Gloo context initialization failed")


class Fleet:
    """`count` processes of one program, which compile quickly or `as_users` do."""

    def __init__(self, count: int, as_users: bool = False) -> None:
        self.count = count
        context = forked.context()
        pairs = [context.Pipe() for _ in range(count)]
        self.ends: list[Any] = [ours for ours, _ in pairs]
        theirs = [end for _, end in pairs]
        self.context: Any = process_launch.start(_serve, (theirs, as_users), count, False, True, "forkserver")
        for end in theirs:
            end.close()

    def run(self, function: Callable[..., Any], *args: Any, seconds: float = SECONDS) -> list[Any]:
        """Return the results of `function(*args)` in each process, in order; raise an error with its traceback."""
        for end in self.ends:
            end.send((function.__module__, function.__qualname__, args, seconds))
        answers = self._answers(seconds)
        failures = [
            f"in process {index} of {self.count}: {answer}"
            for index, (fine, answer) in sorted(answers.items())
            if not fine
        ]
        if failures:
            self.kill()
        assert not failures, "\n".join(failures)
        return [answers[index][1] for index in range(self.count)]

    def _answers(self, seconds: float) -> dict[int, tuple[bool, Any]]:
        """Return what the processes answer. Of a process that failed, others wait for its part, so they have less time.

        Raises `TimeoutError` if none failed and one is silent.
        """
        answers: dict[int, tuple[bool, Any]] = {}
        end, has_failed = time.monotonic() + seconds, False
        while len(answers) < self.count:
            places = {each: index for index, each in enumerate(self.ends) if index not in answers}
            ready: list[Any] = wait(list(places), max(0.0, end - time.monotonic()))
            for index in sorted(places[each] for each in ready):
                try:
                    answers[index] = self.ends[index].recv()
                except (EOFError, OSError):
                    code = self.context.processes[index].exitcode
                    answers[index] = False, f"process {index} ended with code {code}"
            if not ready:
                if not has_failed:
                    self.kill()
                    silent = ", ".join(map(str, places.values()))
                    raise TimeoutError(f"process {silent} of {self.count} did not answer within {seconds} s")
                answers |= {index: (False, f"no answer within {AFTER_FAILURE} s of that") for index in places.values()}
            if not has_failed and not all(fine for fine, _ in answers.values()):
                end, has_failed = min(end, time.monotonic() + AFTER_FAILURE), True
        return answers

    def end(self) -> None:
        """Let the processes end, and kill the remaining ones."""
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
        except (Exception, CheckpointException):  # a checkpoint's error is no `Exception`
            answer = False, traceback.format_exc()
        finally:
            faulthandler.cancel_dump_traceback_later()
        own.send(answer)


_fleets: dict[tuple[int, bool], Fleet] = {}


class SharedFleet:
    """The fleet of `count` processes that several tests share; a new one takes the place of one that was killed."""

    def __init__(self, count: int, as_users: bool = False) -> None:
        self.count = count
        self.as_users = as_users

    def run(self, function: Callable[..., Any], *args: Any, seconds: float = SECONDS) -> list[Any]:
        """As `Fleet.run`; where sockets of the machine did not connect, once more, in a new fleet, with a warning."""
        try:
            return self._fleet().run(function, *args, seconds=seconds)
        except AssertionError as error:
            if not any(each in str(error) for each in NOT_CONNECTED):
                raise
            with warnings.catch_warnings():
                warnings.simplefilter("always")  # the test reports it and continues
                warnings.warn(
                    f"{function.__qualname__} runs once more, since Gloo did not connect: {error}", stacklevel=2
                )
        return self._fleet().run(function, *args, seconds=seconds)

    def _fleet(self) -> Fleet:
        fleet = _fleets.get((self.count, self.as_users))
        if fleet is None or not all(process.is_alive() for process in fleet.context.processes):
            _fleets[self.count, self.as_users] = fleet = Fleet(self.count, self.as_users)
        return fleet


def fleet_of(count: int, as_users: bool = False) -> SharedFleet:
    """The fleet of `count` processes; several tests share it."""
    return SharedFleet(count, as_users)


@contextmanager
def fleets() -> Iterator[None]:
    """A `with` block at whose end no fleet is left."""
    try:
        yield
    finally:
        while _fleets:
            _fleets.popitem()[1].end()
