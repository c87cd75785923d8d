"""Find the user's lines: the frames of the stack outside of PyTorch, JAX, Python and this package."""

import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from types import CodeType, FrameType

from ..caching.bounded import put_last

Line = tuple[str, int, str]  # file, line, function


class OptimizersLine(tuple[str, int, str]):
    """The user's line of an operation that an optimizer calls: its numbers are worked out for every step."""

    __slots__ = ()


# Threads of PyTorch and of loaders have no frame of the user's.
NOWHERE: Line = ("<another thread>", 0, "no line of the program")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# Code of Python and PyTorch without a file. `<stdin>`, `<string>` and the cells of a notebook are the user's.
_GENERATED = ("<frozen ", "<eval_with_key>", "<__")


def _folder_of(package: str) -> str:
    spec = find_spec(package)
    return os.path.dirname(os.path.abspath(spec.origin)) + os.sep if spec and spec.origin else _PACKAGE + os.sep


_NOT_USERS = (_folder_of("torch"), _folder_of("jax"), _PACKAGE + os.sep, *_GENERATED)

# Filenames are looked up for every frame of a new program: a dictionary answers faster than prefixes.
_is_users: dict[str, bool] = {}
_MOST_FILES = 4096  # each cell of a notebook is one

# The line of each instruction that was asked for. A frame finds its line by reading a table from the start, which takes
# longer than all the rest. Keyed by id(code), because hashing code is slow; holding the code keeps the id unique.
_found: dict[int, tuple[CodeType, dict[int, tuple[Line]]]] = {}
_MOST_CODE = 4096


def belongs_to_user(filename: str) -> bool:
    """Return whether a file belongs neither to PyTorch, JAX or us, nor to Python itself."""
    if filename.startswith(_NOT_USERS):
        return False
    return not filename.startswith(_STANDARD_LIBRARY) or any(folder in filename for folder in _INSTALLED)


def is_users_own(filename: str) -> bool:
    """Return whether a file belongs to the user, and to no package that is installed."""
    return belongs_to_user(filename) and not any(folder in filename for folder in _INSTALLED)


def is_ours(filename: str) -> bool:
    """Return whether a file belongs to this package."""
    return filename.startswith(_PACKAGE + os.sep)


def user_frame(start: FrameType | None = None) -> FrameType | None:
    """Return the user's innermost frame, from `start` outwards; `None` in threads of PyTorch and of loaders."""
    frame: FrameType | None = start or sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        users = _is_users.get(filename)
        if users is None:
            users = put_last(_is_users, filename, belongs_to_user(filename), _MOST_FILES)
        if users:
            return frame
        frame = frame.f_back  # type: ignore[assignment]
    return None


def line_above(calls: int) -> Line:
    """Return the user's line, searched outwards from `calls` frames above the caller. Fast: every transfer needs it."""
    try:
        frame = sys._getframe(calls + 1)
    except ValueError:
        return user_lines(1, sys._getframe(1))[0]
    known = _found.get(id(frame.f_code))
    line = known[1].get(frame.f_lasti) if known is not None else None
    return user_lines(1, frame)[0] if line is None else line[0]


def user_line() -> Line:
    """Return file, line and function of the user's innermost frame."""
    return user_lines(1, sys._getframe(1))[0]


def user_lines(most: int, start: FrameType | None = None, above: int = 0) -> tuple[Line, ...]:
    """Return the user's frames from `start` outwards, innermost first, at least one and `most` at most.

    Without `start` the search begins `above` the caller's frame, or there if the stack is too short for that (where a
    thread starts).
    """
    try:
        innermost = start or sys._getframe(above + 1)
    except ValueError:
        innermost = sys._getframe(1)
    if most == 1:
        known = _found.get(id(innermost.f_code))
        if known is not None:
            line = known[1].get(innermost.f_lasti)
            if line is not None:
                return line
    frame = user_frame(innermost)
    if frame is None:
        return (NOWHERE,)
    if most == 1:
        return _remember(frame)
    found = [line_of(frame)]
    while len(found) < most and frame.f_back is not None:
        frame = user_frame(frame.f_back)
        if frame is None:
            break
        found.append(line_of(frame))
    return tuple(found)


def _remember(frame: FrameType) -> tuple[Line]:
    code = frame.f_code
    known = _found.get(id(code))
    if known is None:
        if len(_found) >= _MOST_CODE:
            _found.clear()  # a program that makes functions without end
        known = _found[id(code)] = (code, {})
    instruction = frame.f_lasti
    line = known[1].get(instruction)
    if line is None:
        line = known[1][instruction] = (line_of(frame),)
    return line


def line_of(frame: FrameType) -> Line:
    """Return file, line and function of a frame."""
    code = frame.f_code
    return code.co_filename, frame.f_lineno, code.co_name


def text(line: Line) -> str:
    """Return it as in "train.py:31 in step"."""
    return f"{line[0]}:{line[1]} in {line[2]}"


def summary(lines: Iterable[Line | None]) -> str:
    """Return the lines a program was recorded from, the most frequent first, for errors; nothing if none is known."""
    counts: dict[Line, int] = {}
    for line in lines:
        if line is not None:
            counts[line] = counts.get(line, 0) + 1
    if not counts:
        return ""
    ordered = sorted(counts.items(), key=lambda item: -item[1])[:8]
    return "It was recorded by:\n" + "\n".join(f"  {text(line)}  ({count} operations)" for line, count in ordered)
