"""Tell XLA where each operation comes from, for profilers and readers of HLO. It is part of no key.

A program is found again by what it computes. So its names and lines are those of the step for which it was first made,
and a step that does the same elsewhere, or under other scopes, runs under these.
"""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ..compat.names.jax_source_lines import located
from ..ir.graph import Graph
from ..ir.graph_text import name_of, shape
from ..metrics.user_lines import Line, text

Scope = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origins:
    """The user's line and the open scopes of each operation of a graph, as far as they are known."""

    lines: Sequence[Line | None] = ()
    scopes: Sequence[Scope] = ()

    def of(self, graph: Graph, index: int) -> AbstractContextManager[None]:
        """Return a block in which what JAX traces belongs to operation number `index` of `graph`."""
        scope = self.scopes[index] if self.scopes else ()
        line = self.lines[index] if self.lines else None
        return located(line, (*scope, name_of(graph.operations[index])))

    def described(self, graph: Graph, index: int) -> str:
        """Describe operation number `index` of `graph` and where it was recorded, for an error."""
        operation = graph.operations[index]
        given = ", ".join(map(shape, operation.plan.operands))
        line = self.lines[index] if self.lines else None
        return f"{name_of(operation)} of ({given})" + (f", recorded by {text(line)}" if line else "")

    def part(self, operations: Sequence[int]) -> "Origins":
        """Return those of a graph that is made of some of the operations."""
        lines = [self.lines[index] for index in operations] if self.lines else ()
        return Origins(lines, [self.scopes[index] for index in operations] if self.scopes else ())


UNKNOWN = Origins()


def scopes_at(positions: Sequence[int], marks: Sequence[tuple[int, Scope]]) -> list[Scope]:
    """Return the scopes open at each of `positions` of a tape, in ascending order; empty if there were none.

    Each of `marks` holds the scopes open from its position on.
    """
    if not marks:
        return []
    starts = [start for start, _ in marks]
    found = [bisect_right(starts, position) - 1 for position in positions]
    return [marks[index][1] if index >= 0 else () for index in found]
