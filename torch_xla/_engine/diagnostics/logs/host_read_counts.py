"""Count which operators brought values to the host, and from which places."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

_WIDTH = 80
_MOST_PLACES = 20


class Read(NamedTuple):
    """An operator that brought a value to the host, and the frames it was called from, as in "step (train.py:31)"."""

    operator: str
    frames: tuple[str, ...]
    calls: int = 1
    early: int = 0  # how many of them cut a recorded graph short

    def line(self) -> str:
        """Return it as one line of a file."""
        return json.dumps(self._asdict())


def read_of(line: str) -> Read:
    """Return what `Read.line` wrote. Raises `ValueError` for another line."""
    try:
        found = json.loads(line)
        return Read(str(found["operator"]), tuple(found["frames"]), int(found["calls"]), int(found["early"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a line that XLA_FNTRACKER_FILE wrote: {line.strip()!r}") from error


class Tally:
    """Counts reads by operator and place."""

    def __init__(self, reads: Iterable[Read] = ()) -> None:
        self._calls: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._early: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for read in reads:
            self.add(read)

    def add(self, read: Read) -> None:
        """Count one more read."""
        key = read.operator, read.frames
        self._calls[key] += read.calls
        self._early[key] += read.early

    def summary(self) -> list[str]:
        """Return the places, the most frequent first, in the form that the documents show; nothing if there was
        none.
        """
        if not self._calls:
            return []
        lines = [
            "=" * _WIDTH,
            "Unlowered Op usage summary (each of these is a context switch: fewer are faster)",
            "Note: _local_scalar_dense reads one number, as .item() and `if` do",
            "-" * _WIDTH,
        ]
        for (operator, frames), count in self._calls.most_common(_MOST_PLACES):
            lines += [f"FRAME (count={count}):", f'Unlowered Op: "{operator}"']
            if self._early[operator, frames]:
                lines.append(f"Early evaluations of the recorded graph: {self._early[operator, frames]}")
            lines += ["Python Frames:", *(f"  {frame}" for frame in frames), "-" * _WIDTH]
        left = len(self._calls) - _MOST_PLACES
        return [*lines, *([f"and {left} more places"] if left > 0 else []), "=" * _WIDTH]
