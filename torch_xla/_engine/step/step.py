"""The step as values: a tape at one moment, the schedule that follows from it, and one run of a program.

`Seen` is the code and the values of a tape at one moment, and which of the values were held. `Draft` is a schedule in
work: each of `schedule.PASSES` fills in its part. `Schedule` is the result of the passes: made once, then looked up by
the tape's code. `Step` is one run: a program, its inputs and outputs, and the stores that happen together with it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..compile.program import Program
from ..compile.source_metadata import Scope
from ..ir.graph import Cut, Graph, Operation
from ..ir.tape import ALL, Tape, Value
from ..ir.value_spec import Spec
from ..lowering.views.storage_access import WRITE
from ..metrics.counters import Counter
from ..metrics.events import Cause
from ..metrics.user_lines import Line
from ..tensor.device import Device
from .common_liveness import Liveness

# Returns the user's line of each operation of a program: computed only for listeners and errors.
SourceLines = Callable[[], tuple[Line | None, ...]]


class Seen(NamedTuple):
    """The part of a tape that is to be evaluated, and which of its values are held. The tape itself may grow."""

    code: tuple[Any, ...]
    values: list[Value]  # the tape's own list: a reference from a copy would count as a holder
    live: bytes
    shared: tuple[int, ...]
    given: tuple[int, ...]  # the slots of donors
    length: int  # of the whole code
    behind: Sequence[Operation] = ()  # stays on the tape, whatever becomes of the rest


@dataclass(slots=True)
class Schedule:
    """The program of a tape whose values are held in this way, and the part it runs: made once, then looked up."""

    live: bytes
    program: Program | None  # None: nothing to run
    cut: Cut
    code: Sequence[Any]
    lines: dict[int, Any]
    kept: list[Operation] = field(default_factory=list)  # operations that stay on the tape
    counts: list[tuple[Counter, int]] = field(default_factory=list)  # what a run adds to the counters
    output_lines: list[Line | None] = field(default_factory=list)
    made: int = 0  # number of values the tape made that no later tape makes again
    followed_by: "Schedule | None" = None
    length: tuple[int, ...] = ()  # the last number of a program that many lengths share (`growing_sizes`)
    cuts: tuple[int, ...] = ()  # the slots of values that are cut from their rooms
    rooms: tuple[Spec | None, ...] = ()  # of the same: the capacity of each output whose size grows
    runs_all: bool = False  # reads run all until the step ends: each would leave more (`partition.grows`)
    liveness: Liveness | None = None  # of its tape, if several processes evaluate that together
    has_run: bool = False  # and did not fail the last time

    def serves(self, live: bytes) -> bool:
        """Return whether it computes all that is `live` and gives nothing of it away."""
        donated = {self.cut.inputs[index] for index in self.program.donated} if self.program else set()
        inputs = set(self.cut.inputs)
        for slot, (has, wants) in enumerate(zip(self.live, live, strict=True)):
            if wants and not has and (slot not in inputs or slot in donated):
                return False
        return True

    def source_lines(self) -> tuple[Line | None, ...]:
        """Return the user's line of each operation of its graph."""
        return lines_of(self.cut, self.lines)


@dataclass(slots=True)
class Draft:
    """A schedule while the passes work it out. Each pass fills in what the next ones need."""

    device: Device
    tape: Tape
    seen: Seen
    live: bytes  # what counts as held
    roots: tuple[int, ...] | None  # the slots that a read asks for; None: everything, as at the end of a step
    is_common: bool  # several processes evaluate this tape together
    inputs: dict[int, Spec]
    operations: list[Operation]
    producer: list[int]
    pending: list[int] = field(default_factory=list)  # liveness: slots whose values are held and not computed
    effects: list[int] = field(default_factory=list)  # liveness: operations that run whether or not they are held
    chosen: list[int] = field(default_factory=list)  # partition: operations that run now
    outputs: list[int] = field(default_factory=list)  # partition: the slots they give
    kept: list[Operation] = field(default_factory=list)  # partition: operations that stay on the tape
    runs_all: bool = False  # partition: each read runs all, until the step ends
    part: Cut | None = None  # fuse: the chosen operations as one graph
    donated: tuple[int, ...] = ()  # donation: inputs whose memory the program takes
    shared: tuple[Graph, int] | None = None  # growing sizes: the graph of all lengths, and this length
    program: Program | None = None  # program; None: nothing to run


def _no_lines() -> tuple[Line | None, ...]:
    return ()


@dataclass(slots=True, eq=False)
class Step:
    """One run of a program as a value: what it reads, what it gives, and what changes together with it.

    `before`, `after` and `undo` are iterators of C's that store something when they are run through (`atomic`), so that
    an interrupt finds the run as not begun, or as done together with all of its stores.
    """

    program: Program
    inputs: Sequence[Value]
    outputs: Sequence[Value]  # get the buffers of the results
    numbers: Sequence[float | int] = ()
    draws: list[int] | None = None  # the states of its random numbers
    cause: Cause = Cause.SYNC
    source_lines: SourceLines = _no_lines
    before: Iterable[Any] = ()  # in front of the run; may raise, and then nothing runs
    after: Iterable[Any] = ()  # behind it, when the values have their buffers
    undo: Iterable[object] = ()  # takes back `before` when the run fails
    counts: Sequence[tuple[Counter, int]] = ()  # what the run adds to counters
    is_first: bool = False  # the program was compiled for this run: it is not counted as found
    scopes: Sequence[Scope] = ()  # that its operations were recorded in this time; known to close listeners only


def tape_after(schedule: Schedule | None, device: Device) -> Tape:
    """Return an empty tape, which expects what followed the `schedule` last time."""
    following, placed = schedule and schedule.followed_by, None if device.spread is None else device.placed
    tape = Tape(None, None, placed) if following is None else Tape(following.code, following.lines, placed)
    if schedule and schedule.runs_all:
        tape.rest = ALL
    return tape


# The stores that end a tape: two that give the device another one, and three that empty the old one. A value may
# outlive its tape, and must not keep all other values alive through it.
ENDED = "tape", "ended", "values", "code", "reads"


def end_of(tape: Tape, following: Tape, device: Device) -> Iterator[object]:
    """Replace a tape that was evaluated by another one, when it is run through."""
    return map(setattr, (device, tape, tape, tape, tape), ENDED, (following, True, [], [], {}))


class Changed(Exception):
    """Something was recorded on a tape, or it was evaluated, while its program was found and compiled."""


class _Refusing(dict[int, None]):
    def __missing__(self, length: int) -> None:
        raise Changed


_CODE = ("code",)


def unchanged(tape: Tape, length: int) -> Iterator[None]:
    """Raise `Changed`, when it is run through, if the code of `tape` has not this length any more."""
    return map(_Refusing({length: None}).__getitem__, map(len, map(getattr, (tape,), _CODE)))


def lines_of(part: Cut, lines: dict[int, Line]) -> tuple[Line | None, ...]:
    """Return the user's line of each operation of a graph. A view has that of the operation it serves."""
    found = [lines.get(position) for position in part.positions]
    operations = part.graph.operations
    for index in range(1, len(found)):
        if found[index] is None and operations[index].plan.op is WRITE:
            found[index] = found[index - 1]  # a write follows the operation whose result it writes
    for index in range(len(found) - 2, -1, -1):
        if found[index] is None:
            found[index] = found[index + 1]  # a read comes before the operation that reads
    return tuple(found)
