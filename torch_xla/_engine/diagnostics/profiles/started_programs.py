"""The programs that were started while a profile was taken, and the modules that their operations were recorded in.

A profile names an operation of the device by its operator and by the line that its program was first made for. A
program is found again by what it computes, so its names are those of the step that it was compiled for, while the
modules may be others in each run, or were not named then.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...ir.graph import Graph
from ...ir.graph_text import name_of
from ...metrics.user_lines import Line


class OperatorPlace(NamedTuple):
    """An operator, and the file and number of the user's line that its program was made for."""

    operator: str
    line: tuple[str, int] | None

    @classmethod
    def at(cls, operator: str, line: Line | None) -> "OperatorPlace":
        """Return the place of an operator at a line, whatever the function around it."""
        return cls(operator, line and line[:2])


@dataclass(frozen=True, slots=True)
class StartedProgram:
    """A program that was started while a profile was taken."""

    graph: Graph
    lines: Sequence[Line | None]  # that recorded its operations; empty: not known
    time: float  # when it was started: nanoseconds since the epoch
    scopes: Sequence[tuple[str, ...]] = ()  # that its operations were recorded in; empty: in none, or not known

    def places(self) -> Iterator[OperatorPlace]:
        """Yield the place of each operation of its graph."""
        for index, operation in enumerate(self.graph.operations):
            yield OperatorPlace.at(name_of(operation), self.lines[index] if self.lines else None)


def modules_of(
    ran: Sequence[tuple[OperatorPlace, float]], runs: Iterable[StartedProgram]
) -> list[tuple[str, ...] | None]:
    """Return the modules around what was recorded, of each operation of the device, outermost first; `None` where no
    run knows them.

    Each of `ran` has the place of the recorded operator, and a time. Operations of one place have the modules of the
    operators that were recorded there, in their order: in equal parts, since XLA may have made several operations of
    one operator. Equal stages of a program share an executable with the lines of the first, so the operator alone
    decides where no line agrees.
    """
    recorded: defaultdict[OperatorPlace, list[tuple[str, ...] | None]] = defaultdict(list)
    of_name: defaultdict[str, list[tuple[str, ...] | None]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.time):
        for index, place in enumerate(run.places()):
            modules = run.scopes[index] if run.scopes else None
            recorded[place].append(modules)
            of_name[place.operator].append(modules)
    of_place: defaultdict[OperatorPlace, list[int]] = defaultdict(list)
    for index in sorted(range(len(ran)), key=lambda index: ran[index][1]):
        of_place[ran[index][0]].append(index)
    found: list[tuple[str, ...] | None] = [None] * len(ran)
    for place, indices in of_place.items():
        known = recorded.get(place) or of_name.get(place.operator)
        for number, index in enumerate(indices):
            found[index] = known[number * len(known) // len(indices)] if known else None
    return found
