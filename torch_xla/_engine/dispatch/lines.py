"""The user's line behind an operation, kept while a tape walks a path nobody knows yet."""

from ..graph.tape import Tape
from ..metrics.lines import user_line


def note_line(tape: Tape, position: int) -> None:
    """Keeps the line of the operation about to be recorded: the tape has left the path it took last time."""
    tape.expected = None
    tape.lines[position] = user_line()
