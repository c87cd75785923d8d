"""Detect failed processes: each process reports its state, watches one other process, and listens for failures.

Nothing here waits for the device, and nothing needs the thread that runs the program: two threads of this process talk
to the service through which the processes found each other. Messages are JSON.

Every second a process writes a heartbeat and checks the next process. So the number of messages of each process does
not grow with the number of processes. A process that detects a failure writes it to the mailbox of every process,
where their listeners wait. From then on, waiting for another process raises the failure.
"""

import json
import logging
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from .. import config
from ..atomic import frames_of_threads
from ..errors import PeerError
from ..metrics import user_lines
from ..metrics.user_lines import Line
from .identity import Place

logger = logging.getLogger(__name__)

_PREFIX = "torch_xla"
_SECOND = 1.0
# How long a listener waits for a letter at a time, in milliseconds: only the end of the process interrupts it.
_LONG = 60_000
# So long, in seconds, a process has to raise what was declared before it is ended, if who started it is gone.
_GRACE = 10.0
# How long others may take to say where they are.
ANSWER_SECONDS = 5.0
# Texts in errors of collectives: those of the CPU use Gloo, those of GPUs NCCL.
_OF_COLLECTIVES = ("Gloo", "gloo", "NCCL", "nccl")


# Handlers for further kinds of letters.
handlers: "dict[str, Callable[[Watch, dict[str, object]], None]]" = {}
# Functions that add information to a process's report.
about: list[Callable[[], dict[str, Any]]] = []


class Here(NamedTuple):
    """Where a process is."""

    host: str  # equal for processes that see each other's process ids
    pid: int


def starter() -> int:
    """Return the process that started this one and that this one ends with.

    One that is gone by now has left this process to another parent. Or that is a server which forks for who asks it.
    """
    now, asked = os.getppid(), multiprocessing.parent_process()
    if asked is None or asked.pid is None or asked.pid == now:
        return now
    return now if exists(asked.pid) else asked.pid


class Watch:
    """The part of this process in watching over all."""

    def __init__(self, connection: Any, place: Place, everyone: Sequence[Here], started_by_us: bool) -> None:
        self.connection = connection
        self.place = place
        self._everyone = everyone
        self._pid = os.getpid()
        self._parent = starter() if started_by_us else 0
        self._main = threading.main_thread().ident
        self.step = -1
        self.line: Line | None = None
        self.fault: str = ""
        self.is_cut = False  # True when the service cannot be reached any more
        self.has_fault = threading.Event()
        self.woken: set[threading.Event] = set()
        self._ends = threading.Event()
        self._bell, self._ring = os.pipe()  # wakes who looks at another process
        self._letters = 0
        self._asked = 0
        self._watched = (place.index + 1) % place.count
        self._heard, self._heard_at = "", time.monotonic()  # the last beat that was new, and when it was
        self._looked_at = 0.0
        self._threads = [
            threading.Thread(target=target, name=f"torch_xla-{name}", daemon=True)
            for name, target in (("listener", self._listen), ("watch", self._watch))
        ]

    def start(self) -> None:
        """Start the threads. If `torchrun` ends the process by a signal, raise the fault that caused it."""
        for thread in self._threads:
            thread.start()
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and config.torchrun() is not None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
        if is_main and "quit" in handlers and signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL:
            signal.signal(signal.SIGQUIT, self._quit)

    def end(self, why: str = "") -> None:
        """Leave the other processes; with `why`, report that this process ends by a failure."""
        if self._ends.is_set() or os.getpid() != self._pid:
            return
        with suppress(RuntimeError):
            if why and not self.fault:
                self.declare(why)
            if not why and not self.fault:
                self._set(f"ended/{self.place.index}", "")
        self._ends.set()
        os.write(self._ring, b".")
        if self.is_cut:
            return  # a thread that waits for an answer waits for ever
        with suppress(RuntimeError):
            self.send([self.place.index], {"kind": "end"})
        for thread in self._threads:
            thread.join(2)

    def cut(self, fault: str) -> None:
        """Make this process raise `fault` when it waits for another: the others cannot be reached."""
        self._take({"text": fault})
        self.is_cut = True  # not before: what is refused from now on is refused with the fault

    def _speak(self) -> None:
        if self.is_cut:
            raise self.error()

    def _set(self, key: str, value: str) -> None:
        self._speak()
        self.connection.key_value_set(f"{_PREFIX}/{key}", value, allow_overwrite=True)

    def _get(self, key: str) -> str:
        """Return the value of `key`, or an empty text."""
        try:
            self._speak()
            return str(self.connection.key_value_try_get(f"{_PREFIX}/{key}"))
        except RuntimeError:
            return ""

    def propose(self, key: str, value: str) -> str:
        """Write `value` under `key` unless the key has a value, and return the value of the key."""
        self._speak()
        try:
            self.connection.key_value_set(f"{_PREFIX}/{key}", value)
        except RuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
            return self._get(key)
        return value

    def next_number(self, key: str) -> int:
        """Count this process under `key`, and return the number of processes so far."""
        self._speak()
        return int(self.connection.key_value_increment(f"{_PREFIX}/{key}", 1))

    def send(self, to: Sequence[int], letter: Mapping[str, object]) -> None:
        """Put a letter into the mailboxes of these processes."""
        text = json.dumps(letter)
        for index in to:
            number = self.next_number(f"letters/{index}")
            self._set(f"letter/{index}/{number}", text)

    def declare(self, fault: str) -> None:
        """Make every process, also this one, raise `fault` when it waits for another. Only the first fault counts."""
        if self.is_cut:
            return
        if self.next_number("faults") == 1:
            # This process is last: when it receives the fault it may exit, together with the thread that notifies the
            # others.
            others = [index for index in range(self.place.count) if index != self.place.index]
            self.send([*others, self.place.index], {"kind": "fault", "text": fault})
        self.has_fault.wait(ANSWER_SECONDS)

    def _take(self, letter: dict[str, Any]) -> None:
        if not self.fault:
            if "faulted" in handlers:  # before this process raises the fault, and perhaps ends
                handlers["faulted"](self, letter)
            self.fault = letter["text"]
        self.has_fault.set()
        for event in list(self.woken):
            event.set()

    def error(self) -> PeerError:
        """Return the exception that this process raises for the declared fault."""
        own = f"Process {self.place.index} of {self.place.count} raises this {self.position()}."
        return PeerError(f"{self.fault}\n{own}")

    def failure_of(self, text: str) -> PeerError | None:
        """Return the fault behind an error of a collective, which says only that a connection was closed."""
        if not any(word in text for word in _OF_COLLECTIVES):
            return None
        seconds = config.heartbeat_seconds() + 2 * ANSWER_SECONDS
        end = time.monotonic() + seconds
        while not self.has_fault.wait(_SECOND):
            left = self.ended()
            if left:
                self.declare_ended(left, f" ({text.strip()})")
            elif time.monotonic() > end:
                return None
        return self.error()

    def declare_ended(self, left: Sequence[int], why: str = "") -> None:
        """Declare that these processes have ended without a collective that others wait in."""
        names = ", ".join(map(str, left))
        self.declare(
            f"Process{'es' if len(left) > 1 else ''} {names} of {self.place.count} ended without a collective "
            f"that others wait in: all processes must run the same ones.{why}"
        )

    def position(self) -> str:
        """Return the location of this process, in words."""
        return _words(self.step, user_lines.text(self.line) if self.line else "")

    def _listen(self) -> None:
        while not self._ends.is_set():
            key = f"{_PREFIX}/letter/{self.place.index}/{self._letters + 1}"
            try:
                text = self.connection.blocking_key_value_get(key, _LONG)
            except RuntimeError as error:
                if "DEADLINE" in str(error):
                    continue
                return  # the connection is closed
            self._letters += 1
            letter = json.loads(text)
            try:
                self.connection.key_value_delete(key)
                if letter["kind"] == "fault":
                    self._take(letter)
                elif letter["kind"] == "report":
                    self._report(letter)
                elif letter["kind"] in handlers:
                    handlers[letter["kind"]](self, letter)
            except Exception:  # it must hear what comes next
                logger.warning("Process %d could not answer %s", self.place.index, letter, exc_info=True)

    def _watch(self) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1
            line = self._line_now()
            try:
                self._set(f"beat/{self.place.index}", json.dumps([number, time.time(), self.step, line]))
                self._look_at_parent()
                self._look_at_next(_SECOND)
            except RuntimeError:
                return  # the connection is closed

    def _line_now(self) -> str:
        frame = frames_of_threads().get(self._main or 0)
        found = user_lines.user_frame(frame) if frame is not None else None
        return user_lines.text(user_lines.line_of(found)) if found is not None else ""

    def _look_at_parent(self) -> None:
        if not self._parent or os.getppid() == self._parent or self.fault:
            return
        self._take({"text": f"The process {self._parent} that started this program is gone."})
        threading.Thread(target=self._end_by_force, name="torch_xla-end", daemon=True).start()

    def _end_by_force(self) -> None:
        if not self._ends.wait(_GRACE):
            sys.stderr.write(f"torch_xla: {self.fault} This process, {self._pid}, ends.\n")
            sys.stderr.flush()
            os._exit(1)

    def _look_at_next(self, seconds: float) -> None:
        """Watch the next process for `seconds`, or until it is gone."""
        index = self._watched
        there = self._everyone[index]
        if index == self.place.index or self.fault:
            self._ends.wait(seconds)
        elif there.host == self._everyone[self.place.index].host:
            if _has_ended(there.pid, seconds, self._bell):
                self._has_gone(index, "its process on this machine has ended")
        else:
            self._ends.wait(seconds)
            beat, now = self._get(f"beat/{index}"), time.monotonic()
            if beat != self._heard or now - self._looked_at > 5 * _SECOND:
                self._heard, self._heard_at = beat, now  # if this process itself was stopped, it has missed heartbeats
            elif now - self._heard_at > config.heartbeat_seconds():
                self._has_gone(index, f"nothing was heard of it for {config.heartbeat_seconds()} s")
            self._looked_at = now

    def _has_gone(self, index: int, how: str) -> None:
        if self._get_soon(f"ended/{index}"):
            self._watched = (index + 1) % self.place.count
            return
        if not self.has_fault.wait(0.2):  # it may just have said why
            self.declare(f"Process {index} of {self.place.count} is gone: {how}. {self._last_word(index)}")

    def ended(self) -> list[int]:
        """Return the processes that have left."""
        try:
            self._speak()
            left = self.connection.key_value_dir_get(f"{_PREFIX}/ended/")
        except RuntimeError:
            return []
        return sorted(int(key.rpartition("/")[2]) for key, _ in left)

    def _get_soon(self, key: str) -> bool:
        try:
            self.connection.blocking_key_value_get(f"{_PREFIX}/{key}", 100)
        except RuntimeError:
            return False
        return True

    def _last_word(self, index: int) -> str:
        beat = self._get(f"beat/{index}")
        if not beat:
            return "It had not begun."
        _, when, step, line = json.loads(beat)
        return f"{max(0.0, time.time() - when):.1f} s before it was {_words(step, line)}."

    def _report(self, letter: Mapping[str, object]) -> None:
        frame = frames_of_threads().get(self._main or 0)
        frames = traceback.extract_stack(frame)
        while frames and user_lines.is_ours(frames[-1].filename):
            frames.pop()
        stack = "".join(traceback.format_list(frames))
        found = {"step": self.step, "line": self._line_now(), "stack": stack}
        for each in about:
            found |= each()
        self._set(f"answer/{letter['id']}/{self.place.index}", json.dumps(found))

    def reports(self, of: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Request reports from these processes, and return the answers that arrive in time."""
        self._asked += 1
        name = f"{self.place.index}.{self._asked}"
        self.send(of, {"kind": "report", "id": name})
        return {index: json.loads(text) for index, text in self.collect(f"answer/{name}", of).items()}

    def collect(self, key: str, of: Sequence[int]) -> dict[int, str]:
        """Return the values that these processes write under `key` within a few seconds."""
        found = {}
        end = time.monotonic() + ANSWER_SECONDS
        for index in of:
            left = max(1, int(1000 * (end - time.monotonic())))
            with suppress(RuntimeError):
                found[index] = str(self.connection.blocking_key_value_get(f"{_PREFIX}/{key}/{index}", left))
        return found

    def described(self, reports: dict[int, dict[str, Any]], index: int) -> str:
        """Describe the location of a process, with its stack: from its report, or the last heartbeat."""
        if index not in reports:
            return f"Process {index} does not answer. {self._last_word(index)}"
        report = reports[index]
        return f"Process {index} is {_words(report['step'], report['line'])}:\n{report['stack'].rstrip()}"

    def publish(self, key: str, value: str) -> None:
        """Write a value of this process, in the place of an earlier one."""
        self._set(f"{key}/{self.place.index}", value)

    def published(self, key: str) -> dict[int, str]:
        """Return what the processes have written under `key` so far."""
        found = {index: self._get(f"{key}/{index}") for index in range(self.place.count)}
        return {index: text for index, text in found.items() if text}

    def _quit(self, number: int, frame: FrameType | None) -> None:
        handlers["quit"](self, {})

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        # The agent ends the remaining processes as soon as one is gone: if there is a fault, raise it.
        if self.has_fault.wait(3):
            raise self.error()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _words(step: int, line: str) -> str:
    return (f"at step {step}" if step >= 0 else "before its first program") + (f", {line}" if line else "")


def _has_ended(pid: int, seconds: float, bell: int) -> bool:
    """Wait for the end of a process of this machine, `seconds` or until `bell` rings; return whether it ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (OSError, AttributeError):  # no such call here
        time.sleep(seconds)
        return not exists(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(bell, select.POLLIN)
        return handle in [ready for ready, _ in poll.poll(1000 * seconds)]
    finally:
        os.close(handle)


def exists(pid: int) -> bool:
    """Return whether there is a process with this number on this machine, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def here() -> Here:
    """Return the location of this process."""
    parts = [os.uname().nodename]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return Here("/".join(parts), os.getpid())


current: Watch | None = None


def begin(connection: Any, place: Place, everyone: Sequence[Here], started_by_us: bool) -> None:
    """Start to watch the other processes. `everyone` has the location of each."""
    global current
    current = Watch(connection, place, everyone, started_by_us)
    current.start()


def watch() -> Watch | None:
    """Return the watch over the other processes; `None` if this process is alone, or has not met them."""
    return current


def cut(fault: str) -> None:
    """Declare that the other processes can no longer be reached, and why."""
    if current is not None:
        current.cut(fault)


def check() -> None:
    """Raise the fault that one of the processes has declared, if any."""
    if current is not None and current.fault:
        raise current.error()
