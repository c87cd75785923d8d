"""Runs a program, interrupts it at random times, and looks at its tensors after each interrupt."""

import functools
import random
import signal
import sys
import sysconfig
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch

OURS = str(Path(__file__).parents[2] / "torch_xla"), str(Path(__file__).parents[2] / "tests")
LIBRARIES = sysconfig.get_path("purelib")


class Program(Protocol):
    """A program to interrupt."""

    def step(self) -> Any: ...

    def check(self) -> None: ...


class Interrupt(KeyboardInterrupt):
    """The one that is sent here: another is the user's, or one that was raised inside a callback of a program."""


Interrupt.__name__ = KeyboardInterrupt.__name__  # XLA keeps this name in its error


@dataclass
class Found:
    """The number of interrupts, the fates of lost ones, and errors."""

    sent: int = 0
    dropped: int = 0  # raised in a finalizer, where Python prints what is raised and goes on
    swallowed: Counter[str] = field(default_factory=Counter)  # raised in a function of a library: in which, how often
    lost: list[str] = field(default_factory=list)  # raised in a line of ours: where
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        dropped = f", {self.dropped} of them in finalizers" if self.dropped else ""
        places = ", ".join(f"{count} in {place}" for place, count in self.swallowed.most_common())
        swallowed = f", {self.swallowed.total()} of them swallowed by libraries ({places})" if places else ""
        lost = f", {len(self.lost)} of them lost" if self.lost else ""
        text = f"{self.sent} interrupts{dropped}{swallowed}{lost}: {len(self.wrong)} wrong"
        return "\n".join([text, *self.lost[:3], *self.wrong[:3]])

    def note_unseen(self, places: "list[Place]") -> None:
        """Counts an interrupt that was raised at the last of `places`, called from the others, and never seen again.

        One that is raised in a function of a library is the library's, until it is given to what called that; one that
        is raised in a line of ours reaches a library only through us. And of ours nothing swallows it: `tests/house`
        holds that.
        """
        # Skip the standard library, generated code and the audit hook: their caller is responsible. An exception in the
        # hook goes
        # to the C code that reports an event, which may drop it.
        called = [place for place in places if place.function != _heard.__qualname__]
        somebody = [place for place in called if place.file.startswith((*OURS, LIBRARIES))]
        last = somebody[-1]
        if last.file.startswith(OURS):
            self.lost.append("lost: " + " > ".join(map(str, places)))
        else:
            self.swallowed[f"{last.function}, {Path(last.file).relative_to(LIBRARIES)}"] += 1


class Place(NamedTuple):
    """A line that was running."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


def _running(frame: FrameType | None) -> list[Place]:
    # Not the frames themselves, which would keep the tensors of an interrupted step.
    places = []
    while frame is not None:
        code = frame.f_code
        places.append(Place(code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back
    return places[::-1]


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    pass


@functools.cache
def _listen() -> None:
    """Has Python called where an object gets another class, as locks of files do from Python 3.12 on: for good."""
    sys.addaudithook(_heard)


@contextmanager
def alarms(found: Found, places: list[Place]) -> Iterator[Callable[[float], None]]:
    """Yield a function that raises an interrupt after a number of seconds; `places` is then the stack."""

    def arrive(_: int, frame: FrameType | None) -> None:
        found.sent += 1
        places[:] = _running(frame)
        raise Interrupt

    def dropped(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, Interrupt):
            found.dropped += 1

    before, hook = signal.signal(signal.SIGALRM, arrive), sys.unraisablehook
    sys.unraisablehook = dropped
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook


def interrupted(make: Callable[[], Program], count: int, chance: random.Random) -> Found:
    """Interrupts steps of a program `count` times, and checks its tensors and a whole step after each.

    A program may have a context `around` it, in which all this is done.
    """
    found = Found()
    with getattr(make, "around", nullcontext)():
        _interrupt(make, count, chance, found)
    return found


def _seconds(program: Program) -> float:
    start = time.perf_counter()
    program.step()
    return time.perf_counter() - start


def _run_until_sent(program: Program, found: Found, before: int) -> None:
    # In a function of its own: what Python 3.12 raises at the jump back of a loop passes by the `try` around the loop.
    while found.sent == before:
        program.step()


def _interrupt(make: Callable[[], Program], count: int, chance: random.Random, found: Found) -> None:
    program = make()
    for _ in range(3):
        program.step()
    _listen()
    # at least one of them was not delayed by another thread or process
    longest = 1.2 * min(_seconds(program) for _ in range(3))
    places: list[Place] = []
    with alarms(found, places) as send_after:
        while found.sent < count and len(found.wrong) < 10:
            before, dropped = found.sent, found.dropped
            try:
                try:
                    send_after(max(1e-6, chance.uniform(0, longest)))
                    _run_until_sent(program, found, before)
                finally:
                    send_after(0)
                if found.dropped == dropped:
                    found.note_unseen(places)
            except KeyboardInterrupt as interrupt:
                if not isinstance(interrupt, Interrupt) and interrupt.__cause__ is None:
                    raise
            except BaseException:
                # It came through something that turned it into another exception.
                found.wrong.append(traceback.format_exc())
            # An interrupt in PyTorch's `no_grad.__enter__` leaves gradients switched off, on the CPU too.
            torch.set_grad_enabled(True)
            try:
                program.check()
                program.step()
                program.check()
            except BaseException:
                found.wrong.append(traceback.format_exc())
                program = make()
