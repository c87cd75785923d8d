"""Sums up the file that `XLA_FNTRACKER_FILE` names: which operators brought values to the host, and from where.

`PT_XLA_DEBUG` prints the same summary at the end of a program. The file also shows what a program did that was killed,
and the files of several processes can be read together.
"""

from collections.abc import Iterable

from .._engine.diagnostics import HostRead as Read
from .._engine.diagnostics import HostReadTally as Tally
from .._engine.diagnostics import host_read_of as read_of


def parse_frame_content(line: str) -> Read:
    """Parse one line of the file: the `operator`, its `frames`, and the number of `calls` and `early` evaluations.

    Raises `ValueError` for a line of another kind.

    >>> from torch_xla.debug import frame_parser_util
    >>> line = '{"operator": "equal", "frames": ["forward (unit.py:43)"], "calls": 1, "early": 1}'
    >>> frame_parser_util.parse_frame_content(line).operator
    'equal'
    """
    return read_of(line)


def parse_frames(lines: Iterable[str]) -> list[Read]:
    """Parse all lines, in order; skip empty ones.

    >>> from torch_xla.debug import frame_parser_util
    >>> frame_parser_util.parse_frames([])
    []
    """
    return [read_of(line) for line in lines if line.strip()]


def create_report(frames: Iterable[Read]) -> str:
    """Return the summary, the most frequent place first.

    >>> from torch_xla.debug import frame_parser_util
    >>> line = '{"operator": "equal", "frames": ["forward (unit.py:43)"], "calls": 1, "early": 1}'
    >>> print(frame_parser_util.create_report(frame_parser_util.parse_frames([line] * 9000)))
    ====...
    Unlowered Op usage summary ...
    FRAME (count=9000):
    Unlowered Op: "equal"
    Early evaluations of the recorded graph: 9000
    Python Frames:
      forward (unit.py:43)
    ----...
    """
    return "\n".join(Tally(frames).summary())


def process_frames(fname: str) -> None:
    """Print the summary of the file `fname`.

    >>> from torch_xla.debug import frame_parser_util
    >>> frame_parser_util.process_frames("no such file")
    Traceback (most recent call last):
    FileNotFoundError: ...
    """
    with open(fname) as file:
        print(create_report(parse_frames(file)))
