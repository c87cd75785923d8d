"""Check that all processes are about to run the same collectives.

Processes that run different collectives would wait forever, or the library that exchanges their data would end them.
So a process asks the others before it does something new.

Each group of processes has a sequence: the collectives that it has run. The next collective is expected to be the one
that followed the last time the sequence ended in the same way (`_Sequence`). A process whose next collective is the
expected one does not ask. Any other process announces its collective to the group, and starts when all the others have
announced the same, or have noted it. Threads answer for the processes (`heartbeats`), so that an answer does not wait
for what the process is doing. A process that arrives later with another collective does not start. The expectation
follows from the sequence alone, so where the next collectives of two processes differ, at least one of them asks.

Only collectives are compared: their order, sizes and dtypes. The other operations of a program may differ between
processes, and so may the place where it ends. A program that XLA divides over the mesh of several processes is compared
as a whole.
"""

import functools
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from .. import config, metrics
from ..atomic import lock
from ..compile.program import Program
from ..ir.call_plan import Operand, Plan
from ..metrics import user_lines
from ..metrics.user_lines import Line
from ..processes import coordination, heartbeats, identity
from ..processes.heartbeats import Watch

logger = logging.getLogger(__name__)

# Lengths of the contexts that decide which collective is expected: the longest known one counts.
_CONTEXTS = (8, 4, 2, 1)
# Number of the latest collectives that a digest covers, at least; at most twice as many.
_WINDOW = 1 << 14
# Number of the latest programs that are kept, so that a process can say what they were.
_REMEMBERED = 1000
# Seconds after which the threads of missing processes are asked.
_REMIND = 0.3
# Seconds between the looks of a waiting process at whether another has ended.
_SECONDS_BETWEEN_LOOKS = 3.0
# Number of collectives on both sides of a difference that an error shows.
_SHOWN_AROUND_DIFFERENCE = 256

_compared = metrics.counter("ComparedCollectives")

SourceLines = Callable[[], Sequence[Line | None]]


class GroupPart(NamedTuple):
    """The collectives of a program in one group of processes."""

    group: tuple[int, ...]
    name: str  # of the group, in the service
    collectives: list[str]  # in words
    places: list[int]  # of their operations in the graph
    plans: list[Plan | None]  # None: a whole program


class Started(NamedTuple):
    """A program that was started, or is about to be."""

    begin: int  # the number of its first collective
    part: GroupPart
    source_lines: SourceLines
    record: int = 0  # the number of its first collective among those of all groups
    time: int = 0  # nanoseconds since the epoch at which this process came to it
    line: Line | None = None  # the line that ran it


@dataclass
class _Sequence:
    """The collectives that went through one group, and what is expected next."""

    begin: int = 0  # the number of the first that is kept
    kept: list[str] = field(default_factory=list)
    expected: int = -1  # the number of the one that the next is expected to be equal to; -1: nothing is
    places: dict[tuple[str, ...], int] = field(default_factory=dict)  # after which collectives which number came last
    recent: "deque[Started]" = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    @property
    def end(self) -> int:
        return self.begin + len(self.kept)

    def expects(self, collectives: list[str]) -> bool:
        if self.expected < self.begin:
            return False
        # The expected collectives may overlap the new ones: after a, a follows a, a, a.
        return (self.kept[self.expected - self.begin :][: len(collectives)] + collectives)[
            : len(collectives)
        ] == collectives

    def advance(self, collectives: list[str]) -> None:
        if self.expects(collectives):
            self.kept += collectives
            self.expected += len(collectives)
        else:
            for each in collectives:
                self._add(each)
        if self.end % _WINDOW < len(collectives) and self.end >= 3 * _WINDOW:
            self._forget((self.end // _WINDOW - 2) * _WINDOW)

    def _add(self, collective: str) -> None:
        was_expected = self.expects([collective])
        self.kept.append(collective)
        if was_expected:
            self.expected += 1
            return
        contexts = [tuple(self.kept[-length:]) for length in _CONTEXTS if length <= len(self.kept)]
        self.expected = next((self.places[context] for context in contexts if context in self.places), -1)
        self.places.update(dict.fromkeys(contexts, self.end))

    def _forget(self, before: int) -> None:
        self.kept = self.kept[before - self.begin :]
        self.begin = before
        self.places = {context: number for context, number in self.places.items() if number >= before}

    def differs(self, begin: int, announced: Sequence[str], coming: Sequence[str]) -> bool:
        """Return whether what another process `announced`, from number `begin` on, differs from the own ones."""
        own = [_short(each) for each in [*self.kept, *coming][begin - self.begin :][: len(announced)]]
        return own != list(announced[: len(own)])

    def digest(self, end: int, coming: Sequence[str] = ()) -> str:
        """Return a hash of the collectives up to the number `end`, including the `coming` ones, which did not start."""
        begin = max(0, end // _WINDOW - 1) * _WINDOW
        known = [*self.kept, *coming][begin - self.begin : end - self.begin]
        return blake2b("\n".join(known).encode(), digest_size=12).hexdigest()


@functools.lru_cache(4096)
def _short(collective: str) -> str:
    return blake2b(collective.encode(), digest_size=6).hexdigest()


_lock = lock()
_sequences: dict[str, _Sequence] = {}
_parts: WeakKeyDictionary[Program, tuple[GroupPart, ...]] = WeakKeyDictionary()
# How many collectives this process has started, in all groups.
_count = 0
# The collectives that this process is about to start, by group.
_about_to_start: dict[str, Started] = {}
# Announcements about collectives that this process had not reached: by group and number of the first one.
_noted: dict[str, dict[int, list[str]]] = {}
# The groups and numbers for which this process was counted, and to which it has not come.
_counted: set[tuple[str, int]] = set()


def compare_before_start(program: Program, step: int, source_lines: SourceLines) -> None:
    """Wait until no process of the groups of `program` is known to run other collectives than this one.

    Raises `PeerError` in all of them if one does.
    """
    watch = heartbeats.watch()
    if watch is None:
        return
    watch.step, watch.line = step, user_lines.user_line()
    heartbeats.check()
    asked = []
    for part in parts_of(program):
        with _lock:
            sequence = _sequences.setdefault(part.name, _Sequence())
            # From here on `_answer` also compares announcements with what is about to start.
            _about_to_start[part.name] = Started(sequence.end, part, source_lines, _count, time.time_ns(), watch.line)
            end = sequence.end + len(part.collectives)
            noted = _noted.get(part.name, {}).items()
            is_different = any([sequence.differs(begin, announced, part.collectives) for begin, announced in noted])
            if not sequence.expects(part.collectives):
                asked.append((part, sequence.end, sequence.digest(end, part.collectives)))
        if is_different:
            _declare_difference(watch, part.group, part.name, end)
            raise watch.error()
    if asked:
        _compared.value += 1
        _compare(watch, asked)


def note_start(program: Program, source_lines: SourceLines) -> None:
    """Note that `program` was started."""
    global _count
    if heartbeats.watch() is None:
        return
    with _lock:
        for part in parts_of(program):
            sequence = _sequences.setdefault(part.name, _Sequence())
            coming = _about_to_start.pop(part.name, None)
            time_ns, line = (coming.time, coming.line) if coming is not None else (time.time_ns(), None)
            sequence.recent.append(Started(sequence.end, part, source_lines, _count, time_ns, line))
            _count += len(part.collectives)
            sequence.advance(part.collectives)
            # Each is asked for by this process before it comes there, and once by another.
            _counted.difference_update([each for each in _counted if each[0] == part.name and each[1] <= sequence.end])
            noted = _noted.get(part.name)
            if noted is not None:
                for begin in [begin for begin, announced in noted.items() if begin + len(announced) <= sequence.end]:
                    del noted[begin]
                if not noted:
                    del _noted[part.name]


def parts_of(program: Program) -> tuple[GroupPart, ...]:
    """Return the collectives of a program in each group of processes."""
    found = _parts.get(program)
    if found is None:
        found = _parts[program] = tuple(_parts_of(program))
    return found


def _parts_of(program: Program) -> list[GroupPart]:
    if program.target.is_spread:
        return [_of_a_mesh(program)]
    own, everyone = identity.process_index(), tuple(range(identity.process_count()))
    parts: dict[tuple[int, ...], GroupPart] = {}
    for place, operation in enumerate(program.graph.operations):
        effect = operation.plan.effect
        if effect is None or not effect.is_collective:
            continue
        group = next((group for group in effect.groups if own in group), everyone)
        if len(group) > 1:
            part = parts.setdefault(group, GroupPart(group, ",".join(map(str, group)), [], [], []))
            part.collectives.append(_in_words(operation.plan))
            part.places.append(place)
            part.plans.append(operation.plan)
    return [parts[group] for group in sorted(parts)]


def _of_a_mesh(program: Program) -> GroupPart:
    """Note a program that XLA divides and puts collectives into: the processes of a mesh must run all of it alike."""
    group = program.target.processes
    size = len(program.graph.operations)
    words = f"a divided program of {size} operations ({program.key.digest})"
    return GroupPart(group, ",".join(map(str, group)), [words], [size - 1], [None])


def _in_words(plan: Plan) -> str:
    args, kwargs = plan.arguments
    groups = plan.effect.groups if plan.effect is not None else ()
    # Which other groups exchange at the same time is not this one's business.
    rest = [repr(each) for each in args if not isinstance(each, Operand | list) and each != groups]
    rest += [f"{name}={value!r}" for name, value in sorted(kwargs.items())]
    taken = ", ".join(f"{str(spec.dtype).removeprefix('torch.')}{list(spec.size)}" for spec in plan.operands)
    return f"{str(plan.op).removeprefix('xla::')}({', '.join(rest)}) of {taken}"


def _compare(watch: Watch, asked: Sequence[tuple[GroupPart, int, str]]) -> None:
    # Announce to all groups before waiting for one: a group may wait for an announcement to another.
    for part, begin, digest in asked:
        end = begin + len(part.collectives)
        if not _count_arrival(watch, part.group, part.name, end, digest):
            _declare_difference(watch, part.group, part.name, end)
            raise watch.error()
    for part, begin, digest in asked:
        _wait_for_all(watch, part, begin, digest)


def _count_arrival(watch: Watch, group: Sequence[int], name: str, end: int, digest: str) -> bool:
    """Count this process as one that came to `end` with this digest; return whether all digests are equal."""
    if watch.propose(f"digest/{name}/{end}", digest) != digest:
        return False
    with _lock:
        if (name, end) in _counted:
            return True
        _counted.add((name, end))
    if watch.next_number(f"came/{name}/{end}") == len(group):
        watch.propose(f"go/{name}/{end}", digest)
    return True


def _wait_for_all(watch: Watch, part: GroupPart, begin: int, digest: str) -> None:
    key = f"{part.name}/{begin + len(part.collectives)}"
    if _have_come(key, _REMIND):
        return
    if watch.next_number(f"reminded/{key}") == 1:
        others = [index for index in part.group if index != watch.place.index]
        letter = {"kind": "ask", "group": part.group, "name": part.name, "begin": begin, "digest": digest}
        watch.send(others, letter | {"collectives": [_short(each) for each in part.collectives]})
    seconds = config.collective_seconds()
    end = time.monotonic() + seconds
    while not _have_come(key, min(_SECONDS_BETWEEN_LOOKS, max(0.0, end - time.monotonic()))):
        ended = sorted(set(watch.ended()).intersection(part.group))
        if ended:
            watch.declare_ended(ended)
            raise watch.error()
        if time.monotonic() >= end:
            look_for_the_missing(watch, seconds)
            end += seconds


def _have_come(key: str, seconds: float) -> bool:
    try:
        coordination.awaited(f"go/{key}", seconds)
    except TimeoutError:
        return False
    return True


def _answer(watch: Watch, letter: dict[str, Any]) -> None:
    """Answer an announcement: compare it with the own sequence as far as that goes, and note the rest."""
    group, name, begin, announced = (letter[each] for each in ("group", "name", "begin", "collectives"))
    end = begin + len(announced)
    with _lock:
        sequence = _sequences.setdefault(name, _Sequence())
        coming = _about_to_start.get(name)
        collectives = coming.part.collectives if coming is not None else []
        is_different = sequence.differs(begin, announced, collectives)
        if end > sequence.end:
            _noted.setdefault(name, {})[begin] = announced
    if is_different or not _count_arrival(watch, group, name, end, letter["digest"]):
        # In another thread: this one must answer the "describe" request that follows.
        threading.Thread(target=_declare_difference, args=(watch, group, name, end), daemon=True).start()


def _describe(watch: Watch, letter: dict[str, Any]) -> None:
    """Report the collectives of this process around a number."""
    name, end = letter["name"], letter["end"]
    with _lock:
        sequence = _sequences.setdefault(name, _Sequence())
        started = [*sequence.recent, *([_about_to_start[name]] if name in _about_to_start else [])]
    described = {}
    for begin, part, source_lines, *_ in started:
        if begin + len(part.places) <= end - _SHOWN_AROUND_DIFFERENCE or begin > end + _SHOWN_AROUND_DIFFERENCE:
            continue
        where = source_lines()
        for number, (words, place) in enumerate(zip(part.collectives, part.places, strict=True), begin):
            line = where[place] if place < len(where) else None
            described[number] = [words, user_lines.text(line) if line is not None else ""]
    watch.propose(f"described/{watch.place.index}", json.dumps([watch.step, described]))


heartbeats.handlers["ask"] = _answer
heartbeats.handlers["describe"] = _describe


def _declare_difference(watch: Watch, group: Sequence[int], name: str, end: int) -> None:
    if watch.next_number("differences") > 1:  # others have noticed too
        watch.has_fault.wait(3 * heartbeats.ANSWER_SECONDS)
        return
    watch.send(group, {"kind": "describe", "name": name, "end": end})
    by_process: dict[int, tuple[int, dict[int, Sequence[str]]]] = {}
    for index, answer in watch.collect("described", group).items():
        step, found = json.loads(answer)
        by_process[index] = step, {int(number): each for number, each in found.items()}
    watch.declare(difference(by_process))


def difference(by_process: dict[int, tuple[int, dict[int, Sequence[str]]]]) -> str:
    """Describe processes whose collectives differ: `by_process` has the step of each, and its collectives by number.

    >>> from torch_xla._engine.step import collective_consistency
    >>> print(collective_consistency.difference({0: (3, {5: ["all_reduce('sum')", "a.py:1 in f"]}), 1: (3, {})}))
    The processes run different collectives from number 5 of the group on:
      process 0, at step 3: all_reduce('sum')  (a.py:1 in f)
      process 1, at step 3: no other one
    All must record the same collectives, of the same sizes and dtypes, in the same order.
    """
    numbers = sorted({number for _, found in by_process.values() for number in found})
    texts = {
        number: {found[number][0] if number in found else "" for _, found in by_process.values()} for number in numbers
    }
    first = next((number for number in numbers if len(texts[number]) > 1), -1)
    said = [f"The processes run different collectives from number {first} of the group on:"]
    for index, (step, found) in sorted(by_process.items()):
        words, line = found.get(first, ("no other one", ""))
        said.append(f"  process {index}, at step {step}: {words}" + (f"  ({line})" if line else ""))
    return "\n".join([*said, "All must record the same collectives, of the same sizes and dtypes, in the same order."])


def recorded() -> list[tuple[str, list[Started], list[Started], int]]:
    """Return for each group its name, its last programs, the one that this process is about to start, and its end."""
    with _lock:
        found = [
            (name, list(sequence.recent), [_about_to_start[name]] if name in _about_to_start else [], sequence.end)
            for name, sequence in _sequences.items()
        ]
    return [each for each in found if each[1] or each[2]]


def _about() -> dict[str, dict[str, int]]:
    with _lock:
        return {"collectives": {name: sequence.end for name, sequence in _sequences.items()}}


heartbeats.about.append(_about)


def look_for_the_missing(watch: Watch, seconds: float) -> None:
    """Declare a fault if a process that this one waits for does not answer, or has not started what this one has.

    Raises that fault. If all have come to the same place, only the device is slow: it logs a warning.
    """
    everyone = range(watch.place.count)
    reports = watch.reports(everyone)
    missing = set(everyone).difference(reports)
    with _lock:
        ends = {name: sequence.end for name, sequence in _sequences.items()}
        ends.update({name: each.begin + len(each.part.places) for name, each in _about_to_start.items()})
    for name, end in ends.items():
        for index in map(int, name.split(",")):
            if index in reports and reports[index]["collectives"].get(name, 0) < end:
                missing.add(index)
    missing.discard(watch.place.index)
    if not missing:
        logger.warning("Process %d has waited %.0f s, and no process is late.", watch.place.index, seconds)
        return
    names = ", ".join(map(str, sorted(missing)))
    reports_text = "\n".join(watch.described(reports, index) for index in everyone)
    watch.declare(
        f"Process {watch.place.index} waited {seconds:.0f} s in a collective for process"
        f"{'es' if len(missing) > 1 else ''} {names}, which did not come. XLA_COLLECTIVE_TIMEOUT sets how long to "
        "wait. Who reads a value (`item()`, `print`) waits for the collectives behind it: the others have to read it "
        f"too, or to end their step, before they wait for anything else.\n{reports_text}"
    )
    raise watch.error()
