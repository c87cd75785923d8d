"""Find the files of one program in a folder of many, without listing the folder for each."""

import bisect
import contextlib
import os
from pathlib import Path


class Listing:
    """The files of each program in a folder. It is read again if others have written there, not for each program."""

    def __init__(self) -> None:
        self._state: tuple[Path, int] | None = None  # the folder, and when it had these files
        self._names: list[str] = []  # in order

    def of(self, place: Path, program: str, suffix: str) -> list[str]:
        """Return the files of a program with this suffix."""
        with contextlib.suppress(FileNotFoundError):  # nothing was kept there yet
            state = place, place.stat().st_mtime_ns
            if state != self._state:
                self._state, self._names = state, sorted(os.listdir(place))
        begin, end = (bisect.bisect_left(self._names, program + mark) for mark in "-.")  # "." follows "-"
        return [name for name in self._names[begin:end] if name.endswith(suffix)]

    def is_current(self, place: Path) -> bool:
        """Return whether the folder has the files that were listed."""
        return self._state == (place, place.stat().st_mtime_ns)

    def add(self, path: Path) -> None:
        """Add a file that this process has written to a folder that was as listed."""
        bisect.insort(self._names, path.name)
        self._state = path.parent, path.parent.stat().st_mtime_ns
